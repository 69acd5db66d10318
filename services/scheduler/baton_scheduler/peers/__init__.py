"""The peers of the scheduler: they join, send heartbeats, and are lost."""
