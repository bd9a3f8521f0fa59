"""pytorch/pytorch#187018."""
