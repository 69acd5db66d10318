"""Forward passes over the inputs of a step, one per kind of model."""
