"""The order in which waiting sequences start."""
