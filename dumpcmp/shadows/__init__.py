"""Recorded programs, run again in float64: whether two runs ask for the same computation."""
