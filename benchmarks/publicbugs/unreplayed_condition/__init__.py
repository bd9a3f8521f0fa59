"""pytorch/pytorch#195327."""
