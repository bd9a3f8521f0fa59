"""NVIDIA-NeMo/Megatron-Bridge#4661."""
