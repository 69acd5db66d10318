"""What a step makes of hidden states: tokens, log-probabilities, vectors."""
