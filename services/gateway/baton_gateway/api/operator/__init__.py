"""Routes that change a model for all clients."""
