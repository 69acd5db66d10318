"""What operators run: local supervision, chat, benchmarks, replay, the support matrix."""
