"""`python -m baton_mm_preprocess`: run the service."""

from __future__ import annotations

from baton.process.lifecycle import main
from baton_mm_preprocess.config import Config
from baton_mm_preprocess.service import serve

if __name__ == "__main__":
    main("mm-preprocess", Config, serve)
