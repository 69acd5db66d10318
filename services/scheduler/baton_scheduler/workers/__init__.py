"""What the scheduler knows of each worker."""
