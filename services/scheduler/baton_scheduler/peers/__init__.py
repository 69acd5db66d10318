"""The processes that the scheduler speaks to: they join, beat, and are lost."""
