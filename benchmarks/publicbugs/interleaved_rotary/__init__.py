"""huggingface/transformers#47403."""
