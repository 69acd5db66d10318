"""Requests and responses of the Responses API."""
