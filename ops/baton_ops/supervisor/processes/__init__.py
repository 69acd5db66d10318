"""Child processes of the supervisor, however they are made."""
