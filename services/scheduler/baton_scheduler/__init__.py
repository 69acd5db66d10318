"""The scheduler: a pure state machine behind two sockets."""
