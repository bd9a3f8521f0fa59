"""ROCm/aiter#5292."""
