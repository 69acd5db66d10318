"""Routes of the Messages API."""
