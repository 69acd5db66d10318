"""Hidden states to the outputs of embedding, classification, scoring and reward models."""
