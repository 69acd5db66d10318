"""Pipeline parallelism: which layers a stage has, and what goes from a stage to the next one.

    stage 0   embedding, layers 0 to 15     tokens -> states --.
    stage 1   layers 16 to 31, norm, head                      '-> states -> logits

GPipe's scheme (Huang et al. 2019, arXiv:1811.06965). The leader of a worker has the last stage,
since it samples: `rank_stage` returns the stage of a rank.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from baton.errors import SettingsError
from baton_worker import spec
from baton_worker.distributed.communicator import Arrival, Communicator
from baton_worker.layers.forward_context import ForwardContext
from baton_worker.models.decoder import Model
from baton_worker.models.stage_states import StageStates

_HEADER = 64
"""Numbers of the header of a `StageChannel`."""


def rank_stage(rank: int, tensor_size: int, num_stages: int) -> int:
    """The stage of a rank of a worker. Stages are contiguous, and the last one comes first."""
    return (rank // tensor_size - 1) % num_stages


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A rank's place in a pipeline."""

    ranks: Communicator
    """All ranks of all stages."""
    stage: int
    """From 0."""
    num_stages: int
    partition: tuple[int, ...] = ()
    """Layers of each stage; empty: dealt out evenly."""

    def layers_of(self, whole: spec.Decoder) -> spec.Stage:
        """The layers of a model that are in this rank's stage.

        Raises:
            SettingsError: it cannot be cut so, or the partition has another number of layers.
        """
        num_layers = len(whole.layers)
        counts = self.counts(num_layers)
        if len(counts) != self.num_stages or sum(counts) != num_layers:
            raise SettingsError(
                f"--pp-layer-partition {','.join(map(str, counts))}: give one number for each of "
                f"{self.num_stages} stages, of {num_layers} layers in all."
            )
        check_cut(whole, counts)
        start = sum(counts[: self.stage])
        return spec.Stage(start, start + counts[self.stage], num_layers)

    def counts(self, num_layers: int) -> tuple[int, ...]:
        """Layers of each stage, of so many. Raises as `partition`."""
        return self.partition or partition(num_layers, self.num_stages)

    def peer(self, step: int) -> int:
        """The rank with the same part of the layers in the stage `step` behind this one."""
        width = self.ranks.size // self.num_stages
        return (self.ranks.rank + step * width) % self.ranks.size


def partition(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Layers of each stage: as many each, and where they do not come out even one more for the
    stages before the last, which has the head, and then for those before them.

    Raises:
        SettingsError: there are fewer layers than stages.
    """
    if num_layers < num_stages:
        raise SettingsError(
            f"--pipeline-parallel-size {num_stages}: this model has {num_layers} layers, and a "
            "stage needs one. Choose fewer stages."
        )
    each, more = divmod(num_layers, num_stages)
    counts = [each] * num_stages
    for place in range(more):
        counts[num_stages - 2 - place] += 1
    return tuple(counts)


def stage_spec(whole: spec.Decoder, stage: spec.Stage) -> spec.Decoder:
    """The spec of one stage: its own layers under their numbers, and nothing of the others."""
    layers = tuple(
        pair if number in stage.layers else (None, None) for number, pair in enumerate(whole.layers)
    )
    return replace(whole, layers=layers, stage=stage)


def check_cut(whole: spec.Decoder, counts: Sequence[int]) -> None:
    """Check that a model can be cut into stages of so many layers.

    Raises:
        SettingsError: layers of different stages would share weights, pages or a choice of tokens.
    """
    if isinstance(whole, spec.Encoder):
        raise _refusal("encoders are not cut; run more workers instead")
    if whole.layer_embeddings is not None:
        raise _refusal("every layer of this model has an embedding of its own")
    stages = [stage for stage, count in enumerate(counts) for _ in range(count)]
    blocks = dict[int, int]()
    for layer, (mixer, _) in enumerate(whole.layers):
        begins = layer > 0 and stages[layer] != stages[layer - 1]
        if isinstance(mixer, spec.KVReuse) and stages[mixer.source] != stages[layer]:
            raise _refusal(f"layer {layer} reads the KV of layer {mixer.source}")
        if isinstance(mixer, spec.SharedAttention):
            shares = blocks.setdefault(mixer.block, stages[layer])
            if shares != stages[layer]:
                raise _refusal(f"layer {layer} has the weights of a layer in another stage")
        if isinstance(mixer, spec.SparseLatentAttention) and begins and mixer.indexer is None:
            raise _refusal(f"layer {layer} reads the tokens that a layer before it chose")


def _refusal(why: str) -> SettingsError:
    return SettingsError(
        f"--pipeline-parallel-size: {why}. Leave it out, or cut the model elsewhere with "
        "--pp-layer-partition."
    )


def connect(model: Model, pipeline: Pipeline, device: torch.device) -> None:
    """Link the model of one stage with the other stages."""
    model.link = StageChannel(pipeline, model.dtype, device)


class StageChannel:
    """Connects a stage with those before and behind it.

    All states of a step are one message, [T, width]. Its layout follows from the layers, so it is
    sent once, before the first message. A message is sent while the next step runs.

    Args:
        pipeline: this rank's place.
        dtype: of the model.
        device: of this rank.
    """

    def __init__(self, pipeline: Pipeline, dtype: torch.dtype, device: torch.device) -> None:
        self._ranks, self._dtype, self._device = pipeline.ranks, dtype, device
        self._before, self._behind = pipeline.peer(-1), pipeline.peer(1)
        self._sent_header: list[int] = []
        """The header that the next stage has."""
        self._got: list[int] = []
        self._sent: Callable[[], None] = lambda: None
        self._expected = deque[tuple[Tensor, Arrival]]()

    def send(self, states: StageStates, step: ForwardContext) -> None:
        """Send the states of a step. Waits until those of the step before have been sent."""
        groups = states.groups(step)
        header = _header(groups)
        self._sent()
        if not self._sent_header:
            self._ranks.send(torch.tensor(header).to(self._device), self._behind)
            self._sent_header = header
        assert header == self._sent_header, (
            "the states between two stages are the same in every step"
        )
        tensors = [tensor.flatten(1) for group in groups for tensor in group]
        assert all(tensor.dtype is self._dtype for tensor in tensors)
        packed = tensors[0] if len(tensors) == 1 else torch.cat(tensors, dim=1)
        self._sent = self._ranks.begin_send(packed, self._behind)

    def expect(self, num_tokens: int) -> None:
        """See `StageLink`."""
        width = sum(self._layout[2])
        packed = torch.empty((num_tokens, width), dtype=self._dtype, device=self._device)
        arrival = self._ranks.begin_receive(packed, self._before)
        self._expected.append((packed, arrival))

    @property
    def arrived(self) -> bool:
        """See `StageLink`."""
        return not self._expected or self._expected[0][1].is_completed()

    @property
    def _layout(self) -> tuple[list[int], list[list[int]], list[int]]:
        """Of a message: numbers of tensors by group, their shapes, and their widths."""
        if not self._got:
            header = torch.zeros(_HEADER, dtype=torch.int64, device=self._device)
            self._ranks.receive(header, self._before)
            self._got = header.tolist()
        counts, shapes = _read(self._got)
        return counts, shapes, [math.prod(shape) for shape in shapes]

    def receive(self, num_tokens: int, step: ForwardContext) -> StageStates:
        """The states of a step of so many tokens; fills what its layers keep for one another."""
        if not self._expected:
            self.expect(num_tokens)
        packed, arrival = self._expected.popleft()
        arrival.wait()
        assert len(packed) == num_tokens, "steps run in the order in which they are expected"
        counts, shapes, widths = self._layout
        parts = zip(torch.split(packed, widths, dim=1), shapes, strict=True)
        tensors = iter([torch.unflatten(part, 1, shape) for part, shape in parts])
        hidden, skips, shared_kv, pending, embedded = (
            [next(tensors).contiguous() for _ in range(count)] for count in counts
        )
        step.shared_kv[:], step.pending[:], step.embedded[:] = shared_kv, pending, embedded
        return StageStates(hidden[0], skips)


def _header(groups: Sequence[Sequence[Tensor]]) -> list[int]:
    """Numbers of tensors by group, and the shape behind the token axis of each."""
    shapes = [tensor.shape[1:] for group in groups for tensor in group]
    numbers = [len(group) for group in groups]
    numbers += [number for shape in shapes for number in (len(shape), *shape)]
    assert len(numbers) <= _HEADER, "too many states between two stages"
    return numbers + [0] * (_HEADER - len(numbers))


def _read(header: list[int]) -> tuple[list[int], list[list[int]]]:
    """The inverse of `_header`."""
    counts, rest, shapes = header[:5], iter(header[5:]), list[list[int]]()
    for _ in range(sum(counts)):
        shapes.append([next(rest) for _ in range(next(rest))])
    return counts, shapes
