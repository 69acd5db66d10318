"""Server-sent events: templates of chunks, and the head that they share."""
