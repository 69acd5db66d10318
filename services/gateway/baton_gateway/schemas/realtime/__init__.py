"""Events of OpenAI's Realtime API, for sessions that transcribe, and of vLLM's."""
