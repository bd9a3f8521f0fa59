"""pytorch/pytorch#191499."""
