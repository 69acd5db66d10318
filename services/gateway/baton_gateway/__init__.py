"""The HTTP face of Baton: OpenAI's API in, typed messages out."""
