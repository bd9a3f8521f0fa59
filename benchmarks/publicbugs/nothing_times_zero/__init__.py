"""pytorch/pytorch#186281."""
