"""Routes that change a model for everybody."""
