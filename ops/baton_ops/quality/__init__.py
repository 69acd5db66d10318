"""Quality of what a server computes, against a stored baseline."""
