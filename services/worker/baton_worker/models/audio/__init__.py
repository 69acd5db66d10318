"""Audio towers: sounds in prompts."""
