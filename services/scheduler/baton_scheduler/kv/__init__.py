"""The KV manager: page pool, prefix cache, block tables, host cache, transfers."""
