"""The life of a process: signals, watchdog, standby, garbage collection."""
