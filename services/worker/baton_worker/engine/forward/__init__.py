"""How each kind of model runs the inputs of a step."""
