"""Kernels below the layers. Each has a plain twin in torch and a test that compares the two."""
