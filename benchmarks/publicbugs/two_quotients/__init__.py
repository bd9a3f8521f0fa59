"""pytorch/pytorch#193754."""
