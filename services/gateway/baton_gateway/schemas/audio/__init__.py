"""Requests and responses of OpenAI's audio API."""
