"""Encoders of the images in a decoder's prompt."""
