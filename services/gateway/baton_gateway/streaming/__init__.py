"""Server-sent events and chunk templates."""
