"""huggingface/transformers#36607."""
