"""Clips: decoding, sampling of frames, and the video processors of models."""
