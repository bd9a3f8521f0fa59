"""Taps: what sees the values of a running program, and hands them to a Sink."""
