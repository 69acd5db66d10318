"""Child processes that may be killed: files of strangers are decoded there."""
