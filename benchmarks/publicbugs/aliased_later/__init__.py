"""pytorch/pytorch#139789."""
