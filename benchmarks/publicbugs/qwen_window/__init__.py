"""huggingface/transformers#35924."""
