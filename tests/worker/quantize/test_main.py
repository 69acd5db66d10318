"""`baton quantize` on the command line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from baton_worker.quantize.__main__ import main
from tests.support import tiny_models
from tests.support.quantized_checkpoints import SIZES


def test_the_command_writes_and_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "given", tmp_path / "made"
    tiny_models.save_checkpoint(source, "LlamaForCausalLM", **SIZES)
    monkeypatch.setattr(sys, "argv", ["baton quantize", str(source), str(out), "--scheme", "int4"])
    main()
    assert f"{out}: 22 weights in int4" in capsys.readouterr().out
    assert (out / "model.safetensors.index.json").is_file()
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and " exists" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["baton quantize", str(source), str(out), "--scheme", "int3"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and "int3" in capsys.readouterr().err
