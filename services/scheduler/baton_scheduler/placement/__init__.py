"""Placement: the choice of a worker for a sequence."""
