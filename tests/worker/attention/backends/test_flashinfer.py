"""FlashInfer as we call it, against the reference: a stand-in, and itself on a GPU."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import pytest
import torch

from baton_worker.attention.backends.flashinfer import FlashInferBackend
from baton_worker.kernels.kv_codes import CODES
from baton_worker.kernels.page_layout import Layout
from tests.fakes import attention_packages as fakes
from tests.worker.attention.conftest import as_the_reference

CUDA = torch.device("cuda")
Decode = fakes.BatchDecodeWithPagedKVCacheWrapper
Prefill = fakes.BatchPrefillWithPagedKVCacheWrapper
ROWS = {
    "decode": [(1, 30), (1, 0), (1, 99)],
    "prefill": [(70, 0), (9, 16)],
    "mixed": [(1, 30), (50, 0), (1, 47), (4, 9), (1, 0), (20, 113)],
}
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 20},
    "soft cap": {"softcap": 3.0},
}


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in, on a machine with a GPU for it."""
    names = ("BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper")
    fakes.install(monkeypatch, "flashinfer", **{name: getattr(fakes, name) for name in names})
    fakes.hopper(monkeypatch, (8, 0))
    for wrapper in (Decode, Prefill):
        monkeypatch.setattr(wrapper, "made", 0)


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS.keys())
@pytest.mark.parametrize("features", FEATURES.values(), ids=FEATURES.keys())
def test_is_asked_for_what_the_reference_computes(
    problem: Any,
    package: None,
    features: dict[str, Any],
    rows: list[tuple[int, int]],
    layout: Layout,
) -> None:
    given = problem(rows, heads=(6, 2), head_dim=64, page_size=16, dtype=torch.bfloat16)
    backend, call = FlashInferBackend(), replace(given.call, **features)
    assert backend.refuses(replace(call, device=CUDA)) is None
    as_the_reference(backend, given, call, layout)
    many, few = any(count > 1 for count, _ in rows), any(count == 1 for count, _ in rows)
    assert (Decode.made, Prefill.made) == (few, many)


@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 8, 12, 16])
def test_small_groups_do_without_tensor_cores(problem: Any, package: None, group: int) -> None:
    """The stand-in refuses the groups for which there is no kernel without them."""
    given = problem(ROWS["mixed"], heads=(2 * group, 2), head_dim=64, dtype=torch.float16)
    backend = FlashInferBackend()
    as_the_reference(backend, given, given.call)
    decode = backend.plan(given.batch, given.call).parts[0].planned.wrapper
    assert isinstance(decode, Decode) and decode.use_tensor_cores == (group > 3)


def test_layers_share_a_plan_and_steps_share_wrappers(problem: Any, package: None) -> None:
    given = problem(ROWS["mixed"], heads=(6, 2), head_dim=64, dtype=torch.bfloat16)
    backend = FlashInferBackend()
    for step in range(1, 4):
        plan = backend.plan(given.batch, given.call)
        answers = [backend.forward(plan, given.query, given.pages) for _ in range(3)]
        assert torch.equal(answers[0], answers[2])
        assert [part.planned.wrapper.planned for part in plan.parts] == [step, step]
        del plan
        gc.collect()
    assert (Decode.made, Prefill.made) == (1, 1)


def test_two_groups_of_layers_plan_beside_each_other(problem: Any, package: None) -> None:
    """Their keys are in other pages: the second plan must not overwrite the first."""
    given = problem(ROWS["decode"], heads=(6, 2), head_dim=64, dtype=torch.bfloat16)
    other = replace(given.batch, block_table=given.batch.block_table.flip(0))
    backend = FlashInferBackend()
    first = backend.plan(given.batch, given.call)
    expected = backend.forward(first, given.query, given.pages)
    second = backend.plan(other, given.call)
    assert not torch.equal(backend.forward(second, given.query, given.pages), expected)
    assert torch.equal(backend.forward(first, given.query, given.pages), expected)
    assert Decode.made == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"head_dim": 80}, "heads of 64, 128, 256 channels, not 80"),
        ({"sinks": True}, "it does not know sinks"),
        ({"slopes": (1.0,) * 4, "chunk": 4}, "it does not know slopes, chunk"),
        ({"codes": CODES["int8"]}, "it does not know codes"),
        ({"latent": True, "value_dim": 8}, "it does not know latent, value_dim"),
        ({"partial": True, "tree": True}, "it does not know partial, tree"),
    ],
)
def test_what_it_cannot_do_is_refused_with_a_reason(
    problem: Any, package: None, change: dict[str, Any], said: str
) -> None:
    call = problem([(1, 1)], head_dim=64, dtype=torch.bfloat16).call
    assert said in str(FlashInferBackend().refuses(replace(call, device=CUDA, **change)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("heads", [(6, 2), (10, 2)], ids=str)
def test_gives_what_the_reference_gives_on_a_gpu(problem: Any, heads: tuple[int, int]) -> None:
    pytest.importorskip("flashinfer")
    given = problem(ROWS["mixed"], heads=heads, head_dim=64, dtype=torch.bfloat16)
    given = given.to(CUDA)
    for features in FEATURES.values():
        as_the_reference(FlashInferBackend(), given, replace(given.call, **features))
