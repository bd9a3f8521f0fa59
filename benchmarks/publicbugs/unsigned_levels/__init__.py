"""Scottcjn/exo-cuda#40."""
