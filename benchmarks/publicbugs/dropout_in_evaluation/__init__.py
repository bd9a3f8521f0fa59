"""huggingface/transformers#33844."""
