"""pytorch/pytorch#195066."""
