"""Planning of one worker: which rows run next, with which pages, in which message."""
