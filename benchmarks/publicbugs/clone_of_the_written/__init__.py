"""pytorch/pytorch#198031."""
