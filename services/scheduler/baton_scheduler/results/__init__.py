"""Results of workers: read, applied to the slot table, told to gateways."""
