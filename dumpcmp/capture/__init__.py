"""Taps on a running program: what every op took in and gave out."""
