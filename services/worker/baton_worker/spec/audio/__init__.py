"""Encoders of sounds, as data."""
