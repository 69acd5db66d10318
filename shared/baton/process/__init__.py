"""Process life cycle: signals, watchdog, standby, garbage collection, killable children."""
