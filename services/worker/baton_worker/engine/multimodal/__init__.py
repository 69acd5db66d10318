"""Media in the prompts of decoders: encoded once, kept by digest, put in the place of tokens."""
