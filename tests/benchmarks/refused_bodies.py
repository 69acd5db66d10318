"""What 1,000 refused bodies of 2 MB leave in the memory of a gateway.

python -m tests.benchmarks.refused_bodies
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx

from tests.fakes.gateway_socket import site

_COUNT, _WORDS = 1000, 400_000


def serve(run_dir: str) -> None:
    """A gateway over the fake engine: prints its port, then its resident MiB per line of input."""
    with site(run_dir=Path(run_dir)) as here:
        print(here.port, flush=True)
        for _ in sys.stdin:
            lines = Path("/proc/self/status").read_text().splitlines()
            kib = next(line.split()[1] for line in lines if line.startswith("VmRSS"))
            print(f"{int(kib) / 1024:.1f}", flush=True)


def measure(server: subprocess.Popen[str]) -> None:
    """Send the bodies and print the memory before and after."""
    source, target = server.stdout, server.stdin
    assert source is not None and target is not None

    def resident() -> str:
        print(file=target, flush=True)
        return source.readline().strip()

    url = f"http://127.0.0.1:{source.readline().strip()}/v1/completions"
    body = json.dumps({"model": "tiny", "prompt": "word " * _WORDS, "max_tokens": 5})
    with httpx.Client(timeout=60, headers={"content-type": "application/json"}) as client:
        for count in (4, _COUNT):
            for _ in range(count):
                assert client.post(url, content=body).status_code == 400
            print(f"after {count} refused bodies: {resident()} MiB")


def main() -> None:
    """Run the gateway in a process of its own."""
    if sys.argv[1:]:
        return serve(sys.argv[1])
    command = [sys.executable, "-m", "tests.benchmarks.refused_bodies"]
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(
            [*command, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            measure(server)
        finally:
            server.kill()
            server.communicate()


if __name__ == "__main__":
    main()
