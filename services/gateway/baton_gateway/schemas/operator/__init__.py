"""Requests of operators: changes of a model for all clients."""
