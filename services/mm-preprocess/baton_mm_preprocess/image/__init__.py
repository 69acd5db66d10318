"""Images: decoding, and the processors of models."""
