"""Streams and sparse gates of Gemma 3n in C++; the twins are in `layers.altup` and
`layers.ffn.sparse_glu`."""
