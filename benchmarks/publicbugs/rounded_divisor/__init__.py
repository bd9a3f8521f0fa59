"""pytorch/pytorch#186875."""
