"""Commands of `baton`, one file each."""
