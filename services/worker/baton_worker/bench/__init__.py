"""`baton bench engine [MODEL]`: one worker's engine, measured without the services around it."""
