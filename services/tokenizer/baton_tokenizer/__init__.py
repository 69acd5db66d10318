"""Chat templates, text to ids, ids to text. Holds no request state that a log cannot rebuild."""
