"""huggingface/transformers#40700."""
