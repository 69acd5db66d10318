"""A child of `baton.process.child_pool` that does what its requests say."""

from __future__ import annotations

import os
import time

from baton.process.sandbox import Handler, main


def build(setup: bytes) -> Handler:
    """Answers with the setup and the request; `die` and `sleep` do not answer."""
    assert setup != b"bad"

    def handle(request: bytes) -> bytes:
        match request:
            case b"die":
                os._exit(1)
            case b"sleep":
                time.sleep(600)
            case b"pid":
                return str(os.getpid()).encode()
        return setup + b" " + request

    return handle


if __name__ == "__main__":
    main(build)
