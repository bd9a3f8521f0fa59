"""pytorch/pytorch#198094."""
