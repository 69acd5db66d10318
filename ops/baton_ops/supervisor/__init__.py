"""`baton serve`: processes on this machine, started, watched and replaced."""
