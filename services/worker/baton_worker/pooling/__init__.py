"""From hidden states to what embedding, classification, scoring and reward models answer."""
