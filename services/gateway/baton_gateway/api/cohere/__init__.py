"""Cohere's API: vectors of texts and images."""
