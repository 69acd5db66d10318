"""Run one service on a leash: it ends with its supervisor, however that ends.

The supervisor holds the write end of this process's standard input and never writes. The kernel
closes it when the supervisor is gone, `kill -9` included, and the read below returns.

    python -m baton_ops.leash worker
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from baton.__main__ import main as baton


def _end_with_supervisor() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Start to watch, then be `baton <service>`."""
    threading.Thread(target=_end_with_supervisor, name="leash", daemon=True).start()
    baton()


if __name__ == "__main__":
    main()
