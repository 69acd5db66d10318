"""Multimodal inputs: encoding, encoder cache, positions, embeddings of placeholders."""
