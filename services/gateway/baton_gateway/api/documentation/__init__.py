"""What is known of the API by machine: its OpenAPI document, and a page to read it."""
