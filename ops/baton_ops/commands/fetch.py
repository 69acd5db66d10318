"""Fetch the model into the cache and print its path; for services that start offline later.

python -m baton_ops.commands.fetch --model org/name --cache-dir /models
"""

import sys

from baton.checkpoint.hub import resolve
from baton.errors import BatonError
from baton.logs import setup
from baton.process.lifecycle import EXIT_MODEL, EXIT_SETTINGS
from baton.settings import Settings


class Fetch(Settings, prefix="fetch"):
    """Fetch the model into the cache directory and print where it is."""


def main() -> None:
    """Fetch, print the path, exit with a telling code."""
    try:
        settings = Fetch.load(sys.argv[1:])
        setup("fetch", settings.log_level)
        print(resolve(settings))
    except BatonError as error:
        print(f"baton fetch: {error.message}", file=sys.stderr)
        sys.exit(EXIT_SETTINGS if error.code == "bad_settings" else EXIT_MODEL)


if __name__ == "__main__":
    main()
