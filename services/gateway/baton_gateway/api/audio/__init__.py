"""Routes of OpenAI's audio API."""
