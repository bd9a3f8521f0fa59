"""microsoft/DeepSpeed#1801."""
