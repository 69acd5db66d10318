"""Specs are pure data."""

from __future__ import annotations

import subprocess
import sys

import pytest

from baton_worker.spec import Glu, Norm, Rope


def test_specs_are_values() -> None:
    assert Rope(8, 10.0, 32) == Rope(8, 10.0, 32) and len({Norm(1e-5), Norm(1e-5)}) == 1
    with pytest.raises(AttributeError):
        Glu(4).intermediate = 5  # type: ignore[misc]


def test_specs_and_families_import_without_torch() -> None:
    code = (
        "import sys; import baton_worker.models, baton_worker.models.families.llama; "
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
