"""Speech to text: prompts of special tokens, and processing of outputs with timestamps."""
