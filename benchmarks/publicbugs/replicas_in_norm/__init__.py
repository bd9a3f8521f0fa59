"""ROCm/TransformerEngine#715."""
