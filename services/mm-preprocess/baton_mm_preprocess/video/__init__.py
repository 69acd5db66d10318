"""Video: decoding, frame sampling, and the video processors of models."""
