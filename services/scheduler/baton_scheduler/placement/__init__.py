"""Which worker runs a sequence."""
