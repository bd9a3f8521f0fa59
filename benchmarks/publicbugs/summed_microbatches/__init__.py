"""deepspeedai/DeepSpeed#7773."""
