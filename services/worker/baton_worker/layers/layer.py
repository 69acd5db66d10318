"""Base class of layers with weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from baton_worker.kernels.weight import QuantizedWeight


class Bare(nn.Module):
    """A module that calls `forward` directly.

    Without hooks: looking them up in the few hundred calls of a step costs 0.25 ms, when a small
    model needs 10 ms per token on a CPU.
    """

    def __call__(self, *args: Any) -> Any:
        """See `forward` of each class."""
        return self.forward(*args)


class Layer(Bare):
    """A layer defines its own loading: the loader depends on neither fusion nor names."""

    like: Tensor | None = None
    """A tensor on the device and of the dtype of the inputs, of layers that `load_quantized`."""
    int8_inputs: bool = False
    """Whether inputs are rounded to 8-bit integers where the checkpoint's config defines that."""
    processed: tuple[str, ...] = ()
    """The attributes that processing weights sets, of a layer that may be of `single_use`."""
    single_use: bool = False
    """Whether its weights cannot be processed again, once they have been: packed ones were taken in
    place of targets, or targets were changed."""

    @property
    def capture_blocker(self) -> str | None:
        """Why a step with this layer cannot be captured (see `graphs`), as half a sentence; None if
        it can: control flow depends on shapes only, and the host never waits for the device."""
        return None

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """Checkpoint tensor names with the parameters, or rows of one, that they fill."""
        raise NotImplementedError

    def load_quantized(self, name: str, weight: QuantizedWeight) -> bool:
        """Take a quantised checkpoint tensor in place of its target; return False to decline.

        A layer may take a tensor that it shares with the layer that owns the target.
        """
        return False

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights held outside this layer's parameters."""
        return 0

    def awaited_weights(self) -> Iterator[str]:
        """Checkpoint tensors required before `process_weights_after_loading`."""
        return (name for name, _ in self.weight_targets())

    def process_weights_after_loading(self) -> None:
        """Called once after all targets are filled."""

    def restore(self, made: Mapping[str, Any]) -> None:
        """Use the processed weights of another worker's layer, in place of processing them.

        Args:
            made: the values of the attributes in `processed`.
        """
        for name, value in made.items():
            if not _is_same(getattr(self, name), value):
                setattr(self, name, value)
        self.single_use = True


def _is_same(old: Any, new: Any) -> bool:
    """Whether both are one tensor: a tied weight stays one parameter."""
    both = isinstance(old, Tensor) and isinstance(new, Tensor)
    return both and (old.data_ptr(), old.shape) == (new.data_ptr(), new.shape)
