"""Kernels of recurrent layers: scans, delta rules, short convolutions and their states."""
