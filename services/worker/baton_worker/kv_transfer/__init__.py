"""KV transfer between workers: one serves granted pages, the other pulls them."""
