"""huggingface/transformers#17960."""
