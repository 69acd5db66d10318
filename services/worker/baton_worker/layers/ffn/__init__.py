"""Feed-forwards of their own kind."""
