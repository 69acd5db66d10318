"""Labels of a classifier, as its config names them."""

from __future__ import annotations

from types import SimpleNamespace


def num_labels(c: SimpleNamespace) -> int:
    """Number of labels in the config; two by default, as in transformers."""
    named = getattr(c, "id2label", None)
    return len(vars(named)) if named else getattr(c, "num_labels", 2)
