"""Grammars of structured output, shared by gateway and worker."""
