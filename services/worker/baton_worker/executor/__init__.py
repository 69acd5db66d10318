"""Who runs a forward pass: one rank, or a leader and its followers."""
