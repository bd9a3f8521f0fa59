"""huggingface/transformers#34191."""
