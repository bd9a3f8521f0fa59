"""NVIDIA/Megatron-LM#7452."""
