"""Runs recorded ops again, in float64, on what they were given, and holds what they gave to it."""
