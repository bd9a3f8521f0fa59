"""TransformerLensOrg/TransformerLens#777."""
