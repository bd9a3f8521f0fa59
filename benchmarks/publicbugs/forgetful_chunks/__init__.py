"""huggingface/transformers#46741."""
