"""Repros of faults, cut out of runs."""
