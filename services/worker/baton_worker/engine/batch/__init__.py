"""The sequences that a worker holds between steps, and what a plan makes of them."""
