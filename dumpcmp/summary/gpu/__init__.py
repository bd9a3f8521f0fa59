"""Summaries taken on a CUDA device."""
