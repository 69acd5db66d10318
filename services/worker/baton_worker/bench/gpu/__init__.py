"""`make bench-gpu`: what a GPU can do, and how near to it the worker comes; one JSON per card."""
