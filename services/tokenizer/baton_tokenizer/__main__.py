"""`python -m baton_tokenizer`: run the service."""

from __future__ import annotations

from baton.process.lifecycle import main
from baton_tokenizer.config import Config
from baton_tokenizer.service import serve

if __name__ == "__main__":
    main("tokenizer", Config, serve)
