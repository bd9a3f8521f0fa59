"""pytorch/torchtitan#1448."""
