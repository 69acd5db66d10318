"""Models that draft for the served one: their weights, their KV pages, their proposals."""
