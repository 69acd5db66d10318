"""The head, the cut and the last function."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from baton.protocol import Pooling
from baton_worker.layers.build_context import BuildContext
from baton_worker.pooling.pooler import FINISHES, Pooler
from baton_worker.pooling.recipe import Finish, PoolingRecipe
from baton_worker.spec import Dense

SITE = BuildContext(torch.device("cpu"), torch.float32, lambda role: role)
STATES = torch.randn(3, 1, 6, generator=torch.Generator().manual_seed(1))


def pooler(finish: Finish, *head: Dense) -> Pooler:
    made = Pooler(PoolingRecipe("embed", "mean", finish, 6, head), SITE)
    for layer in made.layers():
        for parameter in layer.parameters():
            parameter.data.normal_(generator=torch.Generator().manual_seed(2))
    return made


def test_vectors_have_length_one_after_the_cut() -> None:
    wanted = [Pooling(), Pooling(dimensions=2), Pooling(dimensions=2, raw=True)]
    whole, short, raw = pooler("normalize")(list(STATES), wanted)
    assert torch.allclose(whole, F.normalize(STATES[0], dim=-1))
    assert short.shape == (1, 2) and torch.allclose(short.norm(), torch.tensor(1.0))
    assert torch.equal(raw, STATES[2][:, :2])


def test_the_head_comes_first() -> None:
    layers = (Dense("a", 6, 5, activation="tanh"), Dense("b", 5, 2, bias=False))
    made = pooler("softmax", *layers)
    first, second = (layer.linear for layer in made.head)  # type: ignore[union-attr]
    expected = second(torch.tanh(first(STATES[0]))).softmax(-1)  # type: ignore[operator]
    assert torch.allclose(made([STATES[0]], [Pooling()])[0], expected, atol=1e-6)
    assert torch.allclose(expected.sum(), torch.tensor(1.0))


def test_texts_with_several_rows_and_none() -> None:
    some, none = pooler("identity")([STATES[:, 0], STATES[0][:0]], [Pooling(), Pooling()])
    assert some.shape == (3, 6) and none.shape == (0, 6)


def test_every_finish_keeps_the_shape() -> None:
    for finish in FINISHES.values():
        assert finish(STATES[0]).shape == STATES[0].shape
