"""NVIDIA/Megatron-LM#1446."""
