"""Answers with a journal: how their runs continue, and how repeated requests find them."""
