"""Partitioned runs of real parallel code, right and with planted faults, on gloo ranks."""
