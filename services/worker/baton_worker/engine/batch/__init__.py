"""Input batch: the sequences that a worker holds between steps, and the inputs and outputs of a
step."""
