"""pytorch/pytorch#198101."""
