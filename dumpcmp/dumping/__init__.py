"""Dump a run: capture a program, a model, or whatever runs inside a block, into an archive."""
