"""Requests and responses of the Messages API."""
