"""Child processes of the supervisor, started or forked."""
