"""Tensors of encoders as older and quantised files hold them."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
from gguf import GGMLQuantizationType as Type

from baton.checkpoint.gguf_projector import read_projector
from baton.errors import ModelError
from baton_worker.checkpoint.gguf.projector_file import ProjectorFile
from baton_worker.kernels.quantized_weights import BlockQuantized
from tests.support import tiny_towers
from tests.support.gguf_projectors import plain_tokens, save_pair


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smolvlm")
    tiny_towers.tiny_tower("smolvlm", folder)
    return folder


def opened(folder: Path, out: Path, kinds: dict[str, Type] | None = None) -> ProjectorFile:
    model = save_pair(folder, out, "smolvlm", plain_tokens(320, {"<image>": 319}), kinds)
    projector = read_projector(model)
    assert projector is not None
    return ProjectorFile(projector)


def test_blocks_stay_blocks(folder: Path, tmp_path: Path) -> None:
    kinds = dict.fromkeys(("attn_q.weight", "ffn_up.weight"), Type.Q8_0)
    found = dict(opened(folder, tmp_path, kinds).tensors())
    packed = {name for name, tensor in found.items() if isinstance(tensor, BlockQuantized)}
    assert packed == {
        f"vision_model.encoder.layers.{layer}.{name}.weight"
        for layer in range(4)
        for name in ("self_attn.q_proj", "mlp.fc1")
    }


def test_older_files_swap_the_names_of_feed_forwards(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = {name: tensor.shape for name, tensor in opened(folder, tmp_path / "new").tensors()}
    swapped = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
    write = gguf.GGUFWriter.add_tensor

    def add(self: gguf.GGUFWriter, name: str, *given: object, **more: object) -> None:
        part = name.split(".")[-2]
        write(self, name.replace(part, swapped.get(part, part)), *given, **more)

    monkeypatch.setattr(gguf.GGUFWriter, "add_tensor", add)
    older = opened(folder, tmp_path / "old")
    assert {name: tensor.shape for name, tensor in older.tensors()} == shapes


def test_sounds_and_the_pooling_of_siglip_stay_unread(folder: Path, tmp_path: Path) -> None:
    file = opened(folder, tmp_path)
    read = [name for name, _ in file.tensors()]
    for stored in ("a.blk.0.ln1.weight", "v.head.ffn_up.weight"):
        file._stored[stored] = next(iter(file._stored.values()))
    assert [name for name, _ in file.tensors()] == read


def test_a_tensor_of_another_family_is_refused(folder: Path, tmp_path: Path) -> None:
    file = opened(folder, tmp_path)
    file._stored["v.blk.0.attn_sinks.weight"] = next(iter(file._stored.values()))
    with pytest.raises(ModelError, match=r"holds v\.blk\.0\.attn_sinks\.weight"):
        dict(file.tensors())
