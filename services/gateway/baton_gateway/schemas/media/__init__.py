"""Content parts with media, as the APIs have them."""
