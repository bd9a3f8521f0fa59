"""pytorch/pytorch#198102."""
