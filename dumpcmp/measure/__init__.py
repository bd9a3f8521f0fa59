"""Numbers about values and pairs of values; no opinion on them."""
