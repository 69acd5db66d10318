"""Who runs when, and on which pages: a pure state machine behind two sockets."""
