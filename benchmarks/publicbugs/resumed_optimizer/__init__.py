"""NVIDIA-NeMo/Automodel#763."""
