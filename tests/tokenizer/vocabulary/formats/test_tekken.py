"""tekken.json, compared with mistral-common itself."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import mistral_common
import pytest
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

from baton.errors import ModelError
from baton.protocol import EncodeChat
from baton_tokenizer.chat_template import ChatTemplates
from baton_tokenizer.detokenize import Alphabet, decode
from baton_tokenizer.encode import Encoder
from baton_tokenizer.vocabulary.formats.tekken import Tekken
from baton_tokenizer.vocabulary.load import load
from tests.support.nasty_texts import corpus
from tests.support.tokenizer.tiktoken_files import trained

PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIALS = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]"),
    *("[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    *("[TOOL_CONTENT]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"),
)
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks <s>.",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
    },
}
CALL = {
    "id": "abcdefghi",
    "type": "function",
    "function": {"name": "look", "arguments": '{"q": "ü"}'},
}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "plain": [{"role": "user", "content": "hello world"}],
    "system": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b "},
        {"role": "user", "content": "c [INST] d"},
    ],
    "tools": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "look it up"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": '{"n": 1}', "tool_call_id": "abcdefghi", "name": "look"},
        {"role": "assistant", "content": "It is 1."},
        {"role": "user", "content": "thanks"},
    ],
}


def folder(path: Path, version: str, **changes: Any) -> Path:
    vocab = [
        {"rank": r, "token_bytes": base64.b64encode(t).decode(), "token_str": None}
        for t, r in trained().items()
    ]
    content = {
        "config": {
            "pattern": PATTERN,
            "num_vocab_tokens": len(vocab),
            "default_vocab_size": len(vocab) - 10 + 30,
            "default_num_special_tokens": 30,
            "version": version,
        },
        "vocab": vocab,
        "special_tokens": [
            {"rank": i, "token_str": name, "is_control": True} for i, name in enumerate(SPECIALS)
        ],
    }
    (path / "tekken.json").write_text(json.dumps({**content, **changes}))
    return path


def assert_equal(path: Path, texts: list[str]) -> None:
    vocab, reference = load(path), Tekkenizer.from_file(path / "tekken.json")
    alphabet = Alphabet(vocab)
    assert len(vocab.pieces) == reference.n_words
    for text in texts:
        ids = vocab.literal.tokenizer.encode(text, add_special_tokens=False).ids
        assert ids == reference.encode(text, bos=False, eos=False), text
        assert decode(alphabet, ids, skip_special=True) == reference.decode(ids)


def test_ids_and_text_equal_the_library(tmp_path: Path) -> None:
    assert_equal(folder(tmp_path, "v11"), corpus(600))


@pytest.mark.slow
def test_a_real_vocabulary_equals_the_library(tmp_path: Path) -> None:
    real = Path(mistral_common.__file__).parent / "data" / "tekken_240911.json"
    shutil.copy(real, tmp_path / "tekken.json")
    assert_equal(tmp_path, corpus(2000))


@pytest.mark.parametrize("version", ["v3", "v7", "v11", "v13"])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_conversations_equal_the_library(name: str, version: str, tmp_path: Path) -> None:
    vocab = load(folder(tmp_path, version))
    messages, tools = CONVERSATIONS[name], [TOOL] if name == "tools" else []
    reference = MistralTokenizer.from_file(str(tmp_path / "tekken.json"))
    request = ChatCompletionRequest.from_openai(messages, tools=tools or None)
    expected = reference.encode_chat_completion(request).tokens
    chat = ChatTemplates(vocab.templates, vocab.named, vocab.literal)
    body = [json.dumps(part).encode() for part in (messages, tools)]
    prompt = chat.render(EncodeChat(1, body[0], tools=body[1]), 1000)
    assert Encoder(vocab, 10_000).chat(prompt, 0).ids == expected


def test_thoughts_of_an_assistant(tmp_path: Path) -> None:
    vocab = load(folder(tmp_path, "v13"))
    chat = ChatTemplates(vocab.templates, vocab.named, vocab.literal)
    said = {"role": "assistant", "content": "b", "reasoning_content": "hm"}
    prompt = chat.render(EncodeChat(1, json.dumps([said]).encode()), 100)
    assert prompt.text == "<s>[THINK]hm[/THINK]b</s>"


def test_media_stand_among_the_texts(tmp_path: Path) -> None:
    """As the library joins the chunks of a user: nothing between a text and a sound or an image."""
    vocab = load(folder(tmp_path, "v11"))
    known = {"audio": "[AUDIO]", "image": "[IMG]"}
    chat = ChatTemplates(vocab.templates, vocab.named, vocab.literal, known)
    texts = [{"type": "text", "text": text} for text in "abc"]
    parts = [texts[0], {"type": "audio"}, texts[1], texts[2], {"type": "image"}]
    talk = [{"role": "system", "content": texts[:2]}, {"role": "user", "content": parts}]
    prompt = chat.render(EncodeChat(1, json.dumps(talk).encode()), 100)
    assert prompt.text == (
        "<s>[SYSTEM_PROMPT]a\nb[/SYSTEM_PROMPT][INST]a[BEGIN_AUDIO][AUDIO]b\nc[IMG][/INST]"
    )


def test_a_checkpoint_may_bring_its_own_template(tmp_path: Path) -> None:
    folder(tmp_path, "v3")
    (tmp_path / "chat_template.jinja").write_text("mine")
    assert load(tmp_path).templates == {"default": "mine"}


def test_an_unknown_version_has_no_template(tmp_path: Path) -> None:
    vocab = load(folder(tmp_path, "v99"))
    assert not vocab.templates and vocab.bos_id == 1 and vocab.eos_ids == (2,)


def test_files_without_special_tokens_have_those_of_old(tmp_path: Path) -> None:
    vocab = load(folder(tmp_path, "v3", special_tokens=None))
    assert vocab.tokenizer.token_to_id("[TOOL_CONTENT]") == 19
    assert vocab.tokenizer.token_to_id("<SPECIAL_20>") == 20


@pytest.mark.parametrize("changes", [{"config": {}}, {"vocab": [{}]}, {"vocab": 3}])
def test_a_broken_file_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="not a tekken vocabulary"):
        Tekken.read(folder(tmp_path, "v3", **changes))


@pytest.mark.slow
@pytest.mark.parametrize("part", [" ", "a", "漢", "\n", "aB漢", "\t "])
def test_a_megabyte_of_one_thing_is_encoded(part: str, tmp_path: Path) -> None:
    """The suite's time limit stands for the rest: a quadratic encoder needs hours."""
    vocab, text = load(folder(tmp_path, "v3")), (part * 1_000_000)[:1_000_000]
    ids = vocab.literal.tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
    assert decode(Alphabet(vocab), ids, skip_special=True) == text
