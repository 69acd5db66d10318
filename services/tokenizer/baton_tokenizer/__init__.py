"""The tokenizer: chat templates, encoding, decoding. All of its state can be rebuilt from token
logs."""
