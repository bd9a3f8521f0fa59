"""pytorch/executorch#21773."""
