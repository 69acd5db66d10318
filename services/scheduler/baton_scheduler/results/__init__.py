"""Results of workers: read, applied to the slot table, reported to gateways."""
