"""Tests of recorded programs that are run again in float64."""
