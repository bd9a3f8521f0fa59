"""Summaries: what is kept of a tensor, taken in one pass, and what they tell of a pair."""
