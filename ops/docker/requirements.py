"""Print what the project requires with some of its extras, one requirement a line.

python requirements.py worker telemetry < pyproject.toml
"""

from __future__ import annotations

import sys
import tomllib

project = tomllib.loads(sys.stdin.read())["project"]
extras = [name for words in sys.argv[1:] for name in words.split(",") if name]
chosen = [r for name in extras for r in project["optional-dependencies"][name]]
print(*project["dependencies"], *chosen, sep="\n")
