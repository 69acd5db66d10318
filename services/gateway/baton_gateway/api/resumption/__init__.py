"""Answers whose runs a journal records: how they go on, and how they are found again."""
