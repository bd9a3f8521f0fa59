"""https://discuss.pytorch.org/t/84911."""
