"""A follower rank: its process and its loop."""
