"""pytorch/pytorch#198081."""
