"""What a request would be, without running it: its tokens, its prompt and what it would take."""
