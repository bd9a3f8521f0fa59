"""ml-explore/mlx#1640."""
