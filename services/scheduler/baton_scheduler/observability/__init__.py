"""Statistics, spans and scaling signals."""
