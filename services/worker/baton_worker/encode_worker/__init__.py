"""Workers of the role `encode`: a vision encoder apart from prefill and decode."""
