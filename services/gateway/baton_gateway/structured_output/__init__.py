"""`response_format` and `guided_*`: what clients may ask, and its validation in a child."""
