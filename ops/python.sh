#!/bin/sh
# Print the newest Python on this machine that Baton supports (3.11 to 3.14), or say what to do.
set -eu
advice="Baton needs Python 3.11 to 3.14 and finds none. On Debian or Ubuntu: apt-get install python3 python3-venv"
for name in python3.14 python3.13 python3.12 python3.11 python3 python; do
  "$name" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null || continue
  if "$name" -c 'import ensurepip, venv' 2>/dev/null; then
    command -v "$name"
    exit 0
  fi
  version=$("$name" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  advice="$name cannot make a virtual environment. On Debian or Ubuntu: apt-get install python$version-venv"
done
echo "$advice" >&2
exit 1
