"""Readers: a checkpoint's files to a processor, by the name of the image processor in them."""
