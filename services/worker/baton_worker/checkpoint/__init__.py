"""From files to tensors in the layers of a model."""
