"""huggingface/transformers#36009."""
