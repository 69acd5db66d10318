"""The table of docs/models/supported.md, from the specs of the parity test's tiny checkpoints.

python -m tests.support.models_table           prints it
python -m tests.support.models_table --write   puts it into the page
"""

from __future__ import annotations

import inspect
import json
import sys
import tempfile
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from baton_worker.models import ARCHITECTURES, resolve
from baton_worker.spec import (
    Attention,
    Decoder,
    FourierRope,
    Mlp,
    ModalityMoe,
    Norm,
)
from baton_worker.spec.hf_config import read_config
from tests.oracles import mixtures, ropes
from tests.oracles.audio import heard
from tests.oracles.checkpoints import MAKERS
from tests.oracles.towers import sights
from tests.support import tiny_audio, tiny_models, tiny_towers

PAGE = Path(__file__).parents[2] / "docs" / "models" / "supported.md"
STYLES = {
    "post": "norms after each half",
    "sandwich": "norms around each half",
    "after": "norms after the addition",
    "normed": "normed residuals",
    "blended": "weighted residuals of the normed stream",
    "by_mixer": "norms after each half in layers of attention, before it in others",
    "parallel": "parallel halves",
    "parallel_two_norms": "parallel halves with a norm each",
}
_EXTRAS = {
    "projections.bias": "q, k, v bias",
    "projections.output_bias": "output bias",
    "scores.softcap": "score soft cap",
    "projections.clip": "clipped q, k, v",
    "sinks": "sinks",
    "gate": "gated output",
    "mask.chunk": "chunked attention",
    "projections.query": "low-rank queries",
}
"""Fields of `spec.Attention` that Llama leaves empty."""
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
assert mixtures and ropes, "they register their makers"


def table() -> str:
    """Markdown: one row per architecture, families together."""
    lines = ["| architecture | family | lines | what its tiny checkpoint exercises |", "|-|-|-|-|"]
    for name in sorted(ARCHITECTURES.names(), key=lambda name: (_family(name), name.lower())):
        function = ARCHITECTURES.load(name)
        count = len(inspect.getsource(inspect.unwrap(function)).splitlines())
        what = "; ".join(traits(spec_of(name))) or "nothing beyond Llama"
        lines.append(f"| `{name}` | {_family(name)} | {count} | {what} |")
    return "\n".join(lines)


def page() -> str:
    """The page with the table of today."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def _family(name: str) -> str:
    module: str = ARCHITECTURES.load(name).__module__
    return module.rpartition(".")[2]


def spec_of(architecture: str) -> Decoder:
    """The spec of the tiny checkpoint of an architecture."""
    made = tiny_towers.MAKERS.get(tiny_towers.ARCHITECTURES.get(architecture, ""))
    others = sights.makers() | tiny_audio.makers() | heard.makers()
    if make := MAKERS.get(architecture, others.get(architecture, made)):
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder))
            return resolve(read_config(Path(folder)))
    text = _config(architecture).to_json_string(use_diff=False)
    return resolve(json.loads(text, object_hook=lambda fields: SimpleNamespace(**fields)))


def _config(architecture: str) -> Any:
    """A config of transformers for an architecture."""
    if architecture not in tiny_towers.ARCHITECTURES:
        return tiny_models.tiny_config(architecture)
    config = tiny_towers.tiny_config(tiny_towers.ARCHITECTURES[architecture])
    config.architectures = [architecture]
    return config


def traits(spec: Decoder) -> Iterator[str]:
    """What sets a spec apart from Llama's, in words."""
    mixers = [mixer for mixer, _ in spec.layers if isinstance(mixer, Attention)]
    ffns = [ffn for _, ffn in spec.layers]
    yield from _norms(spec.norm)
    if spec.style in STYLES:
        yield STYLES[spec.style]
    yield from _positions(spec, mixers)
    yield from _attention(mixers)
    kinds = {type(mixer).__name__ for mixer, _ in spec.layers if mixer is not None}
    yield from sorted(kinds - {"Attention"})
    if any(mixer is None for mixer, _ in spec.layers) or None in ffns:
        yield "layers without attention or ffn"
    if any(isinstance(ffn, Mlp) for ffn in ffns):
        yield "ffn without a gate"
    if any(type(ffn).__name__ == "Moe" for ffn in ffns):
        yield "experts"
    if any(isinstance(ffn, ModalityMoe) for ffn in ffns):
        yield "experts by modality"
    yield from _ends(spec)


def _norms(norm: Norm) -> Iterator[str]:
    if norm.kind == "layer":
        extras = ["" if norm.scaled else " without parameters"]
        extras.append("" if norm.bias or not norm.scaled else " without bias")
        yield "LayerNorm" + "".join(extras)
    if norm.offset:
        yield f"norms by {norm.offset:g} + w"


def _positions(spec: Decoder, mixers: list[Attention]) -> Iterator[str]:
    ropes = {mixer.rope for mixer in mixers}
    if spec.embedding.positions is not None:
        yield "computed positions" if spec.embedding.positions.waves else "learned positions"
    elif mixers and mixers[0].scores.slopes is not None:
        yield "ALiBi"
    elif None in ropes:
        yield "no positions in some layers"
    found = [rope for rope in ropes if rope is not None]
    if len({rope.base for rope in found}) > 1:
        yield "two ropes"
    if any(rope.interleaved for rope in found):
        yield "interleaved rope"
    if any(rope.dim < mixers[0].head_dim for rope in found):
        yield "partial rope"
    if any(isinstance(rope, FourierRope) for rope in found):
        yield "rope of mixed frequencies"
    if axes := {len(rope.sections.sizes) for rope in found if rope.sections is not None}:
        yield f"rope of {max(axes)} axes"
    yield from sorted(
        f"{rope.kind.replace('_', ' ')} rope" for rope in found if rope.kind != "default"
    )


def _attention(mixers: list[Attention]) -> Iterator[str]:
    if windows := sum(mixer.mask.window is not None for mixer in mixers):
        yield f"window in {windows} of {len(mixers)} layers"
    first: Any = mixers[0] if mixers else None
    if first is None:
        return
    if first.qk_norm is not None:
        when = " after the rope" if first.qk_norm.after_rope else ""
        over = {"head": "each head", "each": "each head with its own weight", "full": "all heads"}
        yield f"q and k normed over {over[first.qk_norm.over]}{when}"
    for field, words in _EXTRAS.items():
        if any(attrgetter(field)(mixer) for mixer in mixers):
            yield words
    if len({mixer.num_kv_heads for mixer in mixers}) > 1:
        yield "head counts differ by layer"


def _ends(spec: Decoder) -> Iterator[str]:
    embedding, head = spec.embedding, spec.head
    scales = {"embeddings": embedding.scale, "residuals": spec.residual_scale, "logits": head.scale}
    if scaled := [name for name, scale in scales.items() if scale != 1.0]:
        yield f"multiplied {', '.join(scaled)}"
    if embedding.norm is not None:
        yield "embedding norm"
    if embedding.width not in (None, spec.hidden):
        yield "projected embeddings"
    if head.softcap is not None:
        yield "logit soft cap"
    if head.unit_rows:
        yield "NormHead"
    if head.bias:
        yield "head bias"
    if head.tied:
        yield "tied head"
    if spec.skips:
        yield "block skip connections"
    if spec.tensors.fused:
        yield "fused tensors"
    if spec.tensors.unused:
        yield "unused tensors"


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(table())
