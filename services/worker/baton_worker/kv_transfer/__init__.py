"""KV transfer between workers: the source serves granted pages, the target pulls them."""
