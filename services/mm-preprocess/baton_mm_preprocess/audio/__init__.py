"""Sound: files to samples, samples to the features of a model."""
