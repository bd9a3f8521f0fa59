"""pytorch/pytorch#192985."""
