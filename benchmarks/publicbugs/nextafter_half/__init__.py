"""pytorch/pytorch#187340."""
