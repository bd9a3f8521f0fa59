"""pytorch/pytorch#160285."""
