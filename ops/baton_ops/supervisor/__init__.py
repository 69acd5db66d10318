"""`baton serve`: starts, monitors and restarts the processes on this machine."""
