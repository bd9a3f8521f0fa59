"""pytorch/torchtitan#1842."""
