"""The public shapes of requests and responses, and nothing else."""
