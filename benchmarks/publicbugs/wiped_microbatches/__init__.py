"""NVIDIA-NeMo/Automodel#3530."""
