"""pytorch/pytorch#193279."""
