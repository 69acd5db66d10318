"""Speech to text: prompts of special tokens, and what is made of an output with timestamps."""
