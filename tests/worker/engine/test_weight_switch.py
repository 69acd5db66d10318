"""Weights of an engine change: it then answers as one that was started with them."""

from __future__ import annotations

import json
import shutil
import weakref
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from baton.errors import ModelError
from baton.protocol import Sampling, WeightSource, WeightVersion
from baton_worker.config import Config
from baton_worker.engine.engine import Engine
from baton_worker.engine.weight_switch import files_of, trial_config
from baton_worker.weight_transfer.contents import source_of
from tests.fakes.scheduler_planner import Planner, Sequence, run_all

pytestmark = pytest.mark.row("F14.14")
SETTINGS = {"device": "cpu", "dtype": "float32", "threads": 1, "max_kv_bytes": 1 << 24}


def answer(engine: Engine) -> list[int]:
    """Twenty tokens, alone."""
    sequence = Sequence([1, 403, 407, 261], Sampling(20, temperature=0.0))
    run_all(Planner(engine), [sequence])
    engine.reset()
    return sequence.log


def changed(stories: Path, folder: Path, seed: int) -> Path:
    """The model with other weights."""
    shutil.copytree(stories, folder)
    torch.manual_seed(seed)
    path = next(folder.glob("*.safetensors"))
    tensors = {
        name: t + 0.3 * t.std() * torch.randn_like(t) if t.ndim > 1 else t
        for name, t in load_file(path).items()
    }
    save_file(tensors, path, metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def other(stories: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return changed(stories, tmp_path_factory.mktemp("other") / "model", 1)


def version_of(path: Path, number: int = 1) -> WeightVersion:
    source = source_of(path)
    return WeightVersion(number, f"v{number}", source.digest[:16], (source,))


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_it_answers_as_an_engine_that_was_started_with_them(
    stories: Path, other: Path, tmp_path: Path, quantization: str
) -> None:
    settings = {**SETTINGS, "quantization": quantization}
    config = Config(model=str(stories), **settings)
    engine = Engine.build(config)
    before = answer(engine)
    fresh = Engine.build(Config(model=str(other), **settings))
    wanted = answer(fresh)
    assert wanted != before and engine.update_blocker is None
    version, old = version_of(other), weakref.ref(engine._model)
    loaded = engine.load_version(version)
    assert answer(engine) == before, "it goes on meanwhile"
    assert engine.try_out(loaded) == "" and answer(engine) == before
    engine.switch_to(loaded, version, config)
    del loaded
    assert answer(engine) == wanted and engine.version == version and old() is None
    # Some tensors alone, upon those.
    name = "model.layers.0.mlp.down_proj.weight"
    patch = tmp_path / "patch.safetensors"
    save_file({name: load_file(next(stories.glob("*.safetensors")))[name]}, patch)
    mixed = tmp_path / "mixed"
    shutil.copytree(other, mixed)
    tensors = load_file(next(other.glob("*.safetensors"))) | load_file(patch)
    save_file(tensors, next(mixed.glob("*.safetensors")), metadata={"format": "pt"})
    two = WeightVersion(2, "v2", b"2", (*version.sources, source_of(patch)))
    engine.switch_to(engine.load_version(two), two, config)
    assert answer(engine) == answer(Engine.build(Config(model=str(mixed), **settings)))
    assert answer(Engine.build(config, two)) == answer(engine)
    awake = engine.sleep(2, config)()()
    assert awake.version == two and answer(awake) == answer(engine)


def test_weights_that_cannot_be_used_change_nothing(
    stories: Path, other: Path, tmp_path: Path
) -> None:
    engine = Engine.build(Config(model=str(stories), **SETTINGS))
    before = answer(engine)
    bad = tmp_path / "nan"
    shutil.copytree(other, bad)
    path = next(bad.glob("*.safetensors"))
    tensors = load_file(path)
    tensors["model.norm.weight"][0] = torch.nan
    save_file(tensors, path, metadata={"format": "pt"})
    assert "failed" in engine.try_out(engine.load_version(version_of(bad)))
    wider = tmp_path / "wider"
    shutil.copytree(other, wider)
    data = json.loads((wider / "config.json").read_text())
    (wider / "config.json").write_text(json.dumps(data | {"rms_norm_eps": 0.5}))
    with pytest.raises(ModelError, match="another model"):
        engine.load_version(version_of(wider))
    strange = tmp_path / "strange.safetensors"
    save_file({"model.no.weight": torch.zeros(2, 2)}, strange)
    with pytest.raises(ModelError, match=r"has not: model\.no\.weight"):
        engine.load_version(version_of(strange))
    assert answer(engine) == before


def test_a_checkpoint_replaces_what_came_before_it() -> None:
    whole, patch = WeightSource("/new", b""), WeightSource("/p", b"", whole=False)
    base = Path("/base")
    for sources, wanted in {
        (): (base, ()),
        (patch,): (base, (Path("/p"),)),
        (patch, whole): (Path("/new"), ()),
        (whole, patch): (Path("/new"), (Path("/p"),)),
    }.items():
        assert files_of(base, WeightVersion(1, "v", b"", sources)) == wanted
    assert files_of(base, None) == (base, ())


def test_a_trial_is_small(stories: Path) -> None:
    engine = Engine.build(Config(model=str(stories), **SETTINGS))
    small = trial_config(engine.resolved)
    assert small.max_num_seqs == 1 and small.num_pages <= 256 and small.graphs is None
