"""Model files that more than one service reads."""
