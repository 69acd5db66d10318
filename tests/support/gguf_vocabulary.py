"""A GGUF file with a byte-level BPE of few tokens and nothing else."""

from __future__ import annotations

from pathlib import Path

import gguf

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def save_vocabulary(path: Path) -> Path:
    """Write the file: a control token, 26 letters and one merge."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(["<s>", *LETTERS, "ab"])
    writer.add_token_types([gguf.TokenType.CONTROL, *[gguf.TokenType.NORMAL] * 27])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_chat_template("{{ messages[0].content }}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path
