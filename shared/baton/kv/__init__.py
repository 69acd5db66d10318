"""Names of KV pages and groups of pages."""
