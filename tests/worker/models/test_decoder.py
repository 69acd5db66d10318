"""The forward loop: memory that a step may and may not touch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from baton_worker.attention.backends.cpu import CpuBackend
from baton_worker.attention.backends.grouped import GroupedBackend
from baton_worker.checkpoint.formats.safetensors import SafetensorsFolder
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.kernels.cpu import library
from baton_worker.kernels.linear import OneDnnLinear
from baton_worker.layers.attention.gqa import Attention
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.linear import Linear
from baton_worker.layers.mlp import Glu
from baton_worker.layers.moe.moe import Moe
from baton_worker.models.build import build
from baton_worker.models.decoder import Model
from baton_worker.pooling.pooler import Pooler
from baton_worker.pooling.recipe import PoolingRecipe
from tests.support import tiny_models

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("decoder")
    tiny_models.save_checkpoint(folder, "Qwen3ForCausalLM")
    return folder


@pytest.fixture(scope="module")
def loaded(folder: Path) -> LoadedModel:
    return load_model(folder, BuildContext(CPU, torch.float32))


def test_a_row_writes_only_its_own_slots(loaded: LoadedModel, driver: Any) -> None:
    run = driver(loaded, 2)
    run.step({0: [5, 6, 7], 1: [8, 9]})
    before = [layer.clone() for layer in run.cache.layers]
    run.step({1: [10]})
    page, offset = run.tables[1][0], 2
    for old, new in zip(before, run.cache.layers, strict=True):
        assert not torch.equal(old[page, offset], new[page, offset])
        new[page, offset] = old[page, offset]
        assert torch.equal(old, new)


def test_another_row_never_changes_the_answer(loaded: LoadedModel, driver: Any) -> None:
    alone = driver(loaded, 1).step({0: [5, 6, 7, 8]})[0]
    together = driver(loaded, 2).step({1: [99] * 20, 0: [5, 6, 7, 8]})[0]
    torch.testing.assert_close(alone, together, rtol=0, atol=1e-4)


@pytest.mark.row("F04.09")
def test_two_layers_may_have_two_backends(
    tmp_path: Path, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one step: kernels for the layers that they know, plain torch for the others."""
    if library("attention") is None:
        pytest.skip("the kernels cannot be built here")
    model = tiny_models.save_checkpoint(tmp_path, "Gemma2ForCausalLM")
    able = CpuBackend.refuses
    monkeypatch.setattr(
        CpuBackend,
        "refuses",
        lambda b, call: "it knows no window" if call.window else able(b, call),
    )
    loaded = load_model(tmp_path, BuildContext(CPU, torch.float32))
    layers = [module for module in loaded.model.modules() if isinstance(module, Attention)]
    chosen = {layer.call.window is None: type(layer.backend) for layer in layers}
    assert chosen == {True: CpuBackend, False: GroupedBackend}

    text, run = [1, 5, 9, 7, 30, 8, 2, 11, 40, 3, 17, 25, 6, 12], driver(loaded, 2, page_size=4)
    found = [run.step({0: text[:9], 1: text[3:7]})[0], run.step({0: text[9:13], 1: text[7:8]})[0]]
    found.append(run.step({0: text[13:]})[0])
    with torch.inference_mode():
        expected = model(torch.tensor([text]), use_cache=False).logits[0]
    torch.testing.assert_close(torch.cat(found), expected, rtol=1e-4, atol=1e-4)


def test_stale_pages_are_not_read(loaded: LoadedModel, driver: Any) -> None:
    fresh = driver(loaded, 1).step({0: [5, 6, 7]})[0]
    used = driver(loaded, 1)
    for layer in used.cache.layers:
        layer.fill_(100.0)
    torch.testing.assert_close(used.step({0: [5, 6, 7]})[0], fresh)


def test_hidden_states_feed_float32_logits(loaded: LoadedModel) -> None:
    logits = loaded.model.logits(torch.randn(2, loaded.spec.hidden))
    assert logits.shape == (2, tiny_models.VOCAB_SIZE) and logits.dtype is torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_model_equals_its_plain_twin(folder: Path, driver: Any, dtype: torch.dtype) -> None:
    packed = load_model(folder, BuildContext(CPU, dtype))
    if OneDnnLinear.refuses(torch.zeros(1, 1, dtype=dtype)) is None:
        linears = [m for m in packed.model.modules() if isinstance(m, Linear)]
        assert linears and all(linear.weight is None for linear in linears)
    twin = build(packed.spec, BuildContext(CPU, dtype))
    wanted = dict(pair for layer in twin.layers() for pair in layer.weight_targets())
    for name, tensor in SafetensorsFolder(folder).tensors(packed.spec):
        if name in wanted:
            wanted[name].copy_(tensor)
    plain = LoadedModel(twin, packed.spec, packed.config, packed.max_length, 0, ())
    tokens = list(range(2, 60))
    ours, expected = (driver(m, 1).step({0: tokens})[0] for m in (packed, plain))
    tolerance = 1e-4 if dtype is torch.float32 else 0.05 * float(expected.abs().max())
    torch.testing.assert_close(ours, expected, rtol=0, atol=tolerance)


def fed(model: Model, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens that come to the last feed-forward from now on, call by call."""
    ffn, seen = model.blocks[-1].ffn, list[int]()
    plain = type(ffn).forward

    def forward(self: Glu | Moe, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        if self is ffn:
            seen.append(len(x))
        return plain(self, x, *rest)

    monkeypatch.setattr(type(ffn), "forward", forward)
    return seen


def test_the_last_feed_forward_runs_for_tokens_that_are_answered(
    loaded: LoadedModel, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else reads it: of a prompt that is one token."""
    run, seen = driver(loaded, 1), fed(loaded.model, monkeypatch)
    whole = run.step({0: [5, 6, 7, 8]})[0]
    hidden = run.hidden({0: [9, 10, 11]})
    assert seen == [4], "the driver asks for the logits of every token"
    last = loaded.model.logits(hidden[-1:])
    assert seen == [4, 1]
    alone = driver(loaded, 1).step({0: [5, 6, 7, 8, 9, 10, 11]})[0]
    torch.testing.assert_close(torch.cat((whole, last)), alone[[0, 1, 2, 3, 6]])


def test_a_pooler_sees_every_token_behind_every_layer(
    folder: Path, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = load_model(folder, BuildContext(CPU, torch.float32))
    seen = fed(given.model, monkeypatch)
    states = driver(given, 1).hidden({0: [5, 6, 7, 8]})
    recipe = PoolingRecipe("embed", "mean", "identity", states.shape[1])
    given.model.pooler = Pooler(recipe, BuildContext(CPU, torch.float32))
    final = driver(given, 1).hidden({0: [5, 6, 7, 8]})
    assert seen == [4] and not torch.equal(states, final)


def test_experts_that_choose_tokens_see_every_token(
    tmp_path: Path, driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_models.save_checkpoint(tmp_path, "MixtralForCausalLM")
    for router, answered in (("top_k", [1]), ("expert_choice", [4])):
        given = load_model(tmp_path, BuildContext(CPU, torch.float32), router=router)
        with monkeypatch.context() as patched:
            seen = fed(given.model, patched)
            given.model.logits(driver(given, 1).hidden({0: [5, 6, 7, 8]})[-1:])
        assert seen == answered
