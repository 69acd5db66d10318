"""Feed-forward layers with an activation of their own: sparse (Gemma 3n), learned (xIELU)."""
