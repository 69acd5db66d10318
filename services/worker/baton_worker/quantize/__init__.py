"""`baton quantize`: round the weights of a checkpoint once and write the result."""
