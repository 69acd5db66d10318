"""Process life cycle: signals, watchdog, standby, garbage collection."""
