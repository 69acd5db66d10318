"""Clients of the other services, and the view of the fleet."""
