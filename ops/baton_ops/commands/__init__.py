"""The verbs of `baton`, one file each."""
