"""Quality of a served model, compared with a stored baseline."""
