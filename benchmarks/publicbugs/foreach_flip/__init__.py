"""pytorch/pytorch#198033."""
