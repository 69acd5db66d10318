"""Downloads the model into the cache and prints its path, for services that start offline.

python -m baton_ops.commands.fetch --model org/name --cache-dir /models
"""

import sys

from baton.checkpoint.hub import resolve
from baton.errors import BatonError
from baton.logs import setup
from baton.process.lifecycle import EXIT_MODEL, EXIT_SETTINGS
from baton.settings import Settings


class Fetch(Settings, prefix="fetch"):
    """Download the model into the cache directory and print its path."""


def main() -> None:
    """Run the command; the exit code depends on the kind of error."""
    try:
        settings = Fetch.load(sys.argv[1:])
        setup("fetch", settings.log_level)
        print(resolve(settings))
    except BatonError as error:
        print(f"baton fetch: {error.message}", file=sys.stderr)
        sys.exit(EXIT_SETTINGS if error.code == "bad_settings" else EXIT_MODEL)


if __name__ == "__main__":
    main()
