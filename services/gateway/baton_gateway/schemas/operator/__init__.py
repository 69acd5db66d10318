"""Requests of operators, who change a model for everybody."""
