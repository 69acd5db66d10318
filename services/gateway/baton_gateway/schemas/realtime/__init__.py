"""Transcription events of OpenAI's Realtime API, and of vLLM's."""
