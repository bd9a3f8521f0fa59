"""pytorch/torchtitan#1733."""
