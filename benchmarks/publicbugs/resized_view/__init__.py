"""pytorch/pytorch#191449."""
