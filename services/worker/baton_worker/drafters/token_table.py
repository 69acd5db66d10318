"""Whether two checkpoints number the same tokens."""

from __future__ import annotations

from pathlib import Path

from baton.checkpoint.gguf_header import read_metadata
from baton.checkpoint.json_file import read_json, readable_fields
from baton.checkpoint.part_folders import text_folder


def difference(one: Path, size: int, other: Path, other_size: int) -> str:
    """The difference of the tokens of two checkpoints, as half a sentence; empty if there is none.

    Sizes of vocabularies may differ, since checkpoints pad their logits. Where one has no token
    table the sizes must be equal.
    """
    tables = token_table(one), token_table(other)
    if not all(tables):
        return "" if size == other_size else f"it has {size} tokens and not {other_size}"
    here, there = tables
    if len(here) != len(there):
        return f"its vocabulary has {len(here)} tokens and not {len(there)}"
    for token in sorted(here.keys() | there.keys()):
        if here.get(token) != there.get(token):
            return f"its token {token} is {here.get(token)!r} and not {there.get(token)!r}"
    return ""


def token_table(path: Path) -> dict[int, str]:
    """Names by token, from a GGUF file or the tokenizer.json of a folder; empty if it has none."""
    if path.is_file():
        return dict(enumerate(read_metadata(path).get("tokenizer.ggml.tokens", [])))
    file = text_folder(path) / "tokenizer.json"
    if not file.is_file():
        return {}
    data = read_json(file)
    with readable_fields(str(file)):
        vocab = data["model"]["vocab"]
        if isinstance(vocab, list):  # Unigram: pairs of a piece and its score.
            table = {token: piece for token, (piece, _) in enumerate(vocab)}
        else:
            table = {token: name for name, token in vocab.items()}
        return table | {added["id"]: added["content"] for added in data["added_tokens"]}
