"""huggingface/transformers#28980."""
