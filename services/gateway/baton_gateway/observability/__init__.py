"""Metrics, the timeline of each request, and its explanation."""
