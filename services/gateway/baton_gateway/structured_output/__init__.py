"""Structured output: `response_format`, `guided_*`, and their validation in a child process."""
