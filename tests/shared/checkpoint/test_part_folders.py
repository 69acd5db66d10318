"""Checkpoints whose parts have folders of their own."""

from __future__ import annotations

import json
from pathlib import Path

from baton.checkpoint.part_folders import (
    PARTS,
    in_parts,
    part_configs,
    text_folder,
    vision_folder,
)


def test_a_checkpoint_is_in_parts_if_it_has_all_of_them(tmp_path: Path) -> None:
    for part in PARTS:
        assert not in_parts(tmp_path) and part_configs(tmp_path) == {}
        assert text_folder(tmp_path) == vision_folder(tmp_path) == tmp_path
        (tmp_path / part).mkdir()
        (tmp_path / part / "config.json").write_text(json.dumps({"of": part}))
    assert part_configs(tmp_path)["llm_cfg"] == {"of": "llm"}
    assert (text_folder(tmp_path).name, vision_folder(tmp_path).name) == ("llm", "vision_tower")
