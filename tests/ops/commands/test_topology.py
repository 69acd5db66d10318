"""`baton topology` prints the diagram in ARCHITECTURE.md."""

from __future__ import annotations

import pytest

from baton.net.topology import mermaid
from baton_ops.commands import topology


def test_the_diagram_is_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["baton topology"])
    topology.main()
    assert capsys.readouterr().out == mermaid()
    monkeypatch.setattr("sys.argv", ["baton topology", "--hlep"])
    with pytest.raises(SystemExit) as ended:
        topology.main()
    assert ended.value.code == 2 and "Unknown flag --hlep" in capsys.readouterr().err
