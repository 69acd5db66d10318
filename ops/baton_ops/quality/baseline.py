"""A stored baseline: the scores of an earlier run, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from baton.errors import SettingsError

Scores = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Baseline:
    """Scores by name, and their subject."""

    kind: str
    """The command that wrote it."""
    subject: str
    """Identity of the questions or texts; scores of different subjects cannot be compared."""
    model: str
    """Informational: another model may be compared with the same baseline."""
    scores: Scores

    def write(self, path: Path) -> None:
        """Write it indented, for readable diffs."""
        fields = {name: getattr(self, name) for name in ("kind", "subject", "model", "scores")}
        path.write_text(json.dumps(fields, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path, kind: str, subject: str) -> Baseline:
        """Read a file written by `write`.

        Raises:
            SettingsError: there is no such file, or it is a baseline of another subject.
        """
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            scores = {str(name): float(score) for name, score in fields["scores"].items()}
            baseline = cls(fields["kind"], fields["subject"], fields["model"], scores)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise SettingsError(
                f"--baseline {path} cannot be read ({_reason(error)}): write one with "
                "--write-baseline."
            ) from error
        if (baseline.kind, baseline.subject) != (kind, subject):
            raise SettingsError(
                f"--baseline {path} is of {baseline.kind} {baseline.subject}, not of {kind} "
                f"{subject}: write a new one with --write-baseline."
            )
        return baseline


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else repr(error)
