"""Trains a draft head of one layer for a small model on a CPU: EAGLE-3 (arXiv:2503.01840) or
multi-token prediction (arXiv:2412.19437), stored as `LlamaForCausalLMEagle3` or `MiMoMTPModel`.

    python -m tools.train_draft_head MODEL TEXT OUT --method eagle3

MODEL is a Llama, a folder or a GGUF file. The model continues pieces of TEXT, and the head is
trained on its hidden states and most probable tokens over these texts. The same arguments give the
same bits on the same machine and libraries.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from tools.arguments import existing_path, new_folder, positive_int

METHODS = ("eagle3", "mtp")
_RATE, _WARM = 1e-3, 20
_CONFIG = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"),
    *("head_dim", "rms_norm_eps", "hidden_act", "max_position_embeddings", "vocab_size"),
)


class Texts(NamedTuple):
    """Outputs of the target model for N texts of T tokens."""

    tokens: Tensor
    """int64 [N, T]"""
    hidden: Tensor
    """float32 [N, T, any]: the inputs of the head."""
    best: Tensor
    """int64 [N, T]: the most probable next token."""


class Target:
    """The target: a causal model of transformers."""

    def __init__(self, model: Any, tokenizer: Any = None) -> None:
        self.model, self.tokenizer, self.config = model.eval(), tokenizer, model.config
        self.embedding = model.get_input_embeddings().weight.detach()
        self.head = model.get_output_embeddings().weight.detach()

    @classmethod
    def load(cls, path: Path) -> Target:
        """Load a folder or a GGUF file."""
        from transformers import AutoModelForCausalLM, AutoTokenizer

        source: dict[str, Any] = {"pretrained_model_name_or_path": str(path)}
        if path.is_file():
            source = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
        model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
        return cls(model, AutoTokenizer.from_pretrained(**source))

    def pieces(self, text: str, count: int, length: int) -> Tensor:
        """`count` pieces evenly spread over a text: int64 [count, length]."""
        ids = torch.tensor(self.tokenizer(text)["input_ids"])
        starts = torch.linspace(0, len(ids) - length - 1, count).long()
        return ids[starts[:, None] + torch.arange(length)]

    @torch.inference_mode()
    def own_texts(self, beginnings: Tensor, length: int) -> Tensor:
        """Continue each beginning to `length` tokens by sampling: int64 [N, length]."""
        texts: Tensor = self.model.generate(
            beginnings,
            attention_mask=torch.ones_like(beginnings),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            min_new_tokens=length - beginnings.shape[1],
            max_new_tokens=length - beginnings.shape[1],
            pad_token_id=0,
        )
        return texts

    @torch.inference_mode()
    def read(self, tokens: Tensor, layers: tuple[int, ...]) -> Texts:
        """Outputs for tokens [N, T], with the inputs of `layers` as hidden states; the last hidden
        states without layers."""
        hidden, best = list[Tensor](), list[Tensor]()
        for first in range(0, len(tokens), 8):
            batch = tokens[first : first + 8]
            out = self.model(batch, output_hidden_states=True, use_cache=False)
            states = [out.hidden_states[layer] for layer in layers] or [out.hidden_states[-1]]
            hidden.append(torch.cat(states, -1))
            best.append(out.logits.argmax(-1))
        return Texts(tokens.clone(), torch.cat(hidden).clone(), torch.cat(best).clone())


class HeadModule(nn.Module):
    """One layer. `forward` computes the residual stream [N, T, hidden] of position i from the
    embedding of token i + 1 and the hidden state of position i."""

    reads: tuple[int, ...] = ()

    def __init__(self, target: Target, layer: nn.Module, width: int) -> None:
        super().__init__()
        from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

        c = target.config
        self.layer, self.fusion = layer, nn.Linear(width, c.hidden_size, bias=False)
        self.norm, self.embedding_norm, self.hidden_norm = (
            LlamaRMSNorm(c.hidden_size, c.rms_norm_eps) for _ in range(3)
        )
        self._rotary, self._embedding = LlamaRotaryEmbedding(c), target.embedding

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings from the target's table."""
        return F.embedding(tokens, self._embedding)

    def rotary(self, x: Tensor) -> Any:
        """Cosines and sines of the positions of [N, T, any]."""
        return self._rotary(x, torch.arange(x.shape[1])[None])


class Eagle3(HeadModule):
    """EAGLE-3, with a language head for the most frequent tokens; the attention is
    `JoinedAttention` of the worker."""

    def __init__(self, target: Target, tokens: Tensor, vocab: int) -> None:
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaDecoderLayer

        c = target.config
        layer: Any = LlamaDecoderLayer(_causal(LlamaConfig(**_fields(c))), 0)
        for part in ("q_proj", "k_proj", "v_proj"):
            rows = getattr(layer.self_attn, part).out_features
            setattr(layer.self_attn, part, nn.Linear(2 * c.hidden_size, rows, bias=False))
        super().__init__(target, layer, 3 * c.hidden_size)
        count = c.num_hidden_layers
        default = (2, count // 2, count - 3)
        self.reads = default if count > 6 else (0, count // 2, count - 1)
        frequent = torch.bincount(tokens.flatten(), minlength=c.vocab_size).argsort(descending=True)
        self.ids = frequent[: min(vocab, c.vocab_size)].sort().values
        self.head = nn.Parameter(target.head[self.ids].clone())

    def read(self, hidden: Tensor) -> Tensor:
        """Project the concatenated hidden states to one."""
        projected: Tensor = self.fusion(hidden)
        return projected

    def forward(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        """The residual stream of each position."""
        layer: Any = self.layer
        pair = torch.cat((self.embedding_norm(self.embed(tokens)), self.hidden_norm(hidden)), -1)
        attended = layer.self_attn(
            pair, position_embeddings=self.rotary(hidden), attention_mask=None
        )
        x = hidden + attended[0]
        out: Tensor = x + layer.mlp(layer.post_attention_layernorm(x))
        return out

    def next_hidden(self, stream: Tensor) -> Tensor:
        """The hidden state of the next draft."""
        return stream

    def logits(self, stream: Tensor) -> Tensor:
        """Logits of `ids`."""
        return F.linear(self.norm(stream), self.head)

    def checkpoint(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Config and tensors of `LlamaForCausalLMEagle3`."""
        names = {"input_layernorm": self.embedding_norm, "hidden_norm": self.hidden_norm}
        tensors = {f"midlayer.{n}.weight": norm.weight for n, norm in names.items()}
        for name, tensor in self.layer.state_dict().items():
            tensors.setdefault(f"midlayer.{name}", tensor)
        tensors |= {"fc.weight": self.fusion.weight, "norm.weight": self.norm.weight}
        has_draft = torch.zeros(len(self._embedding), dtype=torch.bool)
        has_draft[self.ids] = True
        maps = {"d2t": self.ids - torch.arange(len(self.ids)), "t2d": has_draft}
        fields = {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1}
        fields |= {"draft_vocab_size": len(self.ids)}
        fields |= {"eagle_aux_hidden_state_layer_ids": list(self.reads)}
        return fields, tensors | maps | {"lm_head.weight": self.head}


class Mtp(HeadModule):
    """Multi-token prediction in MiMo's layout, with the target's language head."""

    def __init__(self, target: Target, tokens: Tensor, vocab: int) -> None:
        from transformers import Qwen2Config
        from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer

        c = target.config
        fields = _fields(c) | {"num_hidden_layers": 1}
        layer = Qwen2DecoderLayer(_causal(Qwen2Config(**fields)), 0)
        super().__init__(target, layer, 2 * c.hidden_size)
        self.ids, self._head = torch.arange(c.vocab_size), target.head
        self._layers = c.num_hidden_layers

    def read(self, hidden: Tensor) -> Tensor:
        """The hidden states unchanged."""
        return hidden

    def forward(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        """The residual stream of each position."""
        pair = torch.cat((self.hidden_norm(hidden), self.embedding_norm(self.embed(tokens))), -1)
        x = self.fusion(pair)
        out: Tensor = self.layer(x, position_embeddings=self.rotary(x))
        return out

    def next_hidden(self, stream: Tensor) -> Tensor:
        """The hidden state of the next draft."""
        normed: Tensor = self.norm(stream)
        return normed

    def logits(self, stream: Tensor) -> Tensor:
        """Logits of all tokens."""
        return F.linear(self.norm(stream), self._head)

    def checkpoint(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Config and tensors of `MiMoMTPModel`."""
        parts = {
            "input_proj": self.fusion,
            "token_layernorm": self.embedding_norm,
            "hidden_layernorm": self.hidden_norm,
            "final_layernorm": self.norm,
        }
        tensors = {f"{name}.weight": part.weight for name, part in parts.items()}
        tensors |= self.layer.state_dict()
        fields = {"architectures": ["MiMoMTPModel"], "num_hidden_layers": self._layers}
        fields |= {"num_nextn_predict_layers": 1}
        return fields, {f"model.mtp_layers.0.{name}": tensor for name, tensor in tensors.items()}


HEADS: dict[str, type[Eagle3] | type[Mtp]] = {"eagle3": Eagle3, "mtp": Mtp}


def _causal(config: Any) -> Any:
    """Select the attention that is causal without a mask."""
    config._attn_implementation = "sdpa"
    return config


def _fields(config: Any) -> dict[str, Any]:
    fields = {name: getattr(config, name, None) for name in _CONFIG}
    fields["rope_parameters"] = config.rope_parameters
    return {name: value for name, value in fields.items() if value is not None}


def draft_logits(head: Eagle3 | Mtp, texts: Texts, depths: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Logits and labels of each draft: float32 [N, T, V], int64 [N, T].

    At depth d position i takes token i + 1 and the hidden state of position i - 1 at depth d - 1;
    its label is the target's most probable token after token i + 1.
    """
    tokens, best = texts.tokens[:, 1:], texts.best[:, 1:]
    hidden = head.read(texts.hidden[:, :-1])
    for _ in range(depths):
        stream = head(tokens, hidden)
        yield head.logits(stream), best
        tokens, best, hidden = tokens[:, 1:], best[:, 1:], head.next_hidden(stream[:, :-1])


def loss_of(head: Eagle3 | Mtp, texts: Texts, depths: int) -> Tensor:
    """Cross entropy over the tokens that the head can draft; the weight halves with each depth."""
    place = torch.full((int(head.ids.max()) + 1 + 1,), -100)
    place[head.ids] = torch.arange(len(head.ids))
    total = torch.zeros(())
    for depth, (logits, best) in enumerate(draft_logits(head, texts, depths)):
        labels = place[best.clamp_max(len(place) - 1)]
        total = total + F.cross_entropy(logits.flatten(0, 1), labels.flatten()) / 2**depth
    return total


def train(
    head: Eagle3 | Mtp, texts: Texts, steps: int, rows: int = 4, depths: int = 2
) -> list[float]:
    """Train the head; returns the losses."""
    optimizer = torch.optim.AdamW(head.parameters(), lr=_RATE, betas=(0.9, 0.95))
    generator, losses = torch.Generator().manual_seed(0), list[float]()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = _RATE * min(1.0, (step + 1) / _WARM) * (1.0 - 0.9 * step / steps)
        chosen = torch.randint(len(texts.tokens), (rows,), generator=generator)
        loss = loss_of(head, Texts(*(column[chosen] for column in texts)), depths)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@torch.inference_mode()
def agreement(head: Eagle3 | Mtp, texts: Texts, depths: int = 3) -> list[float]:
    """Share of drafts equal to the target's most probable token, by depth."""
    return [
        float((head.ids[logits.argmax(-1)] == best).float().mean())
        for logits, best in draft_logits(head, texts, depths)
    ]


def save(head: Eagle3 | Mtp, target: Target, folder: Path) -> str:
    """Write the checkpoint; returns the SHA-256 of its tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    fields, tensors = head.checkpoint()
    config = _fields(target.config) | {"model_type": "llama"} | fields
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    path = folder / "model.safetensors"
    save_file({name: t.detach().contiguous() for name, t in tensors.items()}, path)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def train_head(
    target: Target, tokens: Tensor, method: str, steps: int, vocab: int
) -> tuple[Eagle3 | Mtp, list[float], list[float]]:
    """Train a head on seven of eight texts; returns it with its losses and its agreement on the
    others."""
    torch.manual_seed(0)
    head = HEADS[method](target, tokens, vocab)
    texts = target.read(tokens, head.reads)
    held_out = torch.arange(len(tokens)) % 8 == 7
    losses = train(head, Texts(*(column[~held_out] for column in texts)), steps)
    return head, losses, agreement(head, Texts(*(column[held_out] for column in texts)))


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="tools.train_draft_head", description=__doc__)
    parser.add_argument("model", type=existing_path)
    parser.add_argument("text", type=existing_path)
    parser.add_argument("out", type=new_folder)
    parser.add_argument("--method", choices=METHODS, default="eagle3")
    for name, value in (("texts", 200), ("length", 128), ("beginning", 24), ("steps", 400)):
        parser.add_argument(f"--{name}", type=positive_int, default=value)
    parser.add_argument(
        "--vocab", type=positive_int, default=8192, help="tokens that EAGLE-3 drafts"
    )
    args = parser.parse_args()
    torch.manual_seed(0)
    target = Target.load(args.model)
    text = args.text.read_text(encoding="utf-8")
    tokens = target.own_texts(target.pieces(text, args.texts, args.beginning), args.length)
    head, losses, agrees = train_head(target, tokens, args.method, args.steps, args.vocab)
    print(f"loss {losses[0]:.3f} to {sum(losses[-20:]) / len(losses[-20:]):.3f}")
    print("agreement by draft:", *(f"{share:.3f}" for share in agrees))
    print(f"{args.out}: SHA-256 {save(head, target, args.out)}")


if __name__ == "__main__":
    main()
