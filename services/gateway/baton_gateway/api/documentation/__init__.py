"""The API described for machines: its OpenAPI document, and a page to browse it."""
