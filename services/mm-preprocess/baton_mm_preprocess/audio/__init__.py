"""Sound: files to samples, samples to the features that a model hears."""
