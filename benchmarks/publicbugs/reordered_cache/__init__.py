"""huggingface/transformers#34232."""
