"""Content parts with media, in the formats of the APIs."""
