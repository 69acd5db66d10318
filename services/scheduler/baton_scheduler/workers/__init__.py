"""State of each worker in the scheduler."""
