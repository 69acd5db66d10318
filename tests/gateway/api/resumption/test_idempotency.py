"""Idempotency-Key: what comes again is answered by the run of the first one."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from baton.protocol import Submit
from baton_gateway.durable import streams
from tests.fakes.gateway_app import chat, completion
from tests.fakes.gateway_engine import MODEL
from tests.fakes.gateway_socket import Site, site
from tests.fakes.whole_system import Whole
from tests.support.served_system import until

REPLY = "Grüße, 🫠 Baton. " * 12


def message(**fields: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": "Hi"}]
    return {"model": MODEL, "max_tokens": 400, "messages": said} | fields


PATHS = {
    "/v1/chat/completions": lambda **fields: chat(max_tokens=400, **fields),
    "/v1/completions": lambda **fields: completion(max_tokens=400, **fields),
    "/v1/messages": message,
}


def ask(here: Site, path: str, key: str = "k", token: str = "", **fields: Any) -> httpx.Response:
    headers = {"idempotency-key": key} | ({"authorization": f"Bearer {token}"} if token else {})
    body = PATHS[path](**fields)
    return httpx.post(f"{here.url}{path}", json=body, headers=headers, timeout=30)


def runs(here: Site) -> list[Submit]:
    return [m for m in here.engine.scheduler.seen if isinstance(m, Submit)]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", PATHS)
def test_it_runs_once_while_it_runs_and_after(tmp_path: Path, path: str, stream: bool) -> None:
    with site(journal_path=tmp_path / "journal") as here, ThreadPoolExecutor(3) as pool:
        here.engine.scheduler.reply, here.engine.scheduler.pace = REPLY, 0.002
        answers = list(pool.map(lambda _: ask(here, path, stream=stream), range(3)))
        answers.append(ask(here, path, stream=stream))
        assert [a.status_code for a in answers] == [200] * 4
        assert len({a.content for a in answers}) == 1 and len(answers[0].content) > 500
        replayed = sorted(a.headers.get("idempotency-replayed", "") for a in answers)
        assert replayed == ["", "true", "true", "true"]
        assert len(runs(here)) == 1
        name = answers[0].text.partition('"id":"')[2].partition('"')[0]
        found = httpx.get(f"{here.url}/v1/streams/{name}")
        assert name and found.status_code == 404, "who guesses a key reads nothing"
        other = ask(here, path, key="other", stream=stream)
        assert other.status_code == 200 and len(runs(here)) == 2


def test_another_body_under_the_same_key_is_refused_for_good(tmp_path: Path) -> None:
    with site(journal_path=tmp_path / "journal") as here:
        path = "/v1/chat/completions"
        assert ask(here, path).status_code == 200
        for fields in ({"temperature": 0.5}, {"stream": True}):
            refused = ask(here, path, **fields)
            assert refused.status_code == 409
            assert refused.headers["x-should-retry"] == "false"
            error = refused.json()["error"]
            assert error["type"] == "invalid_request_error"
            assert error["code"] == "idempotency_key_reused" and error["param"] is None
        assert ask(here, "/v1/completions").status_code == 200, "each API has its own keys"
        for key in ("", "k" * 256, "t\u00e4st".encode("latin-1").decode("latin-1")):
            given = [("idempotency-key", key.encode("latin-1"))]
            bad = httpx.post(f"{here.url}{path}", json=chat(), headers=given)  # type: ignore[arg-type]
            assert bad.status_code == 400 and "Idempotency-Key" in bad.json()["error"]["message"]
        beams = ask(here, path, key="b", use_beam_search=True, n=2)
        assert beams.status_code == 400 and "beam" in beams.json()["error"]["message"].lower()


def test_a_whole_answer_survives_its_gateway(tmp_path: Path) -> None:
    """Also what the model recommended when it began, which its successor does not."""
    path, journal = "/v1/completions", tmp_path / "journal"
    with site(journal_path=journal) as one:
        one.engine.scheduler.reply, one.engine.scheduler.pace = REPLY, 0.01
        one.engine.tokenizer.sampling_defaults = {"top_k": 7}
        one.engine.tokenizer.restart()
        infos = one.engine.tokenizers
        until(lambda: [i.sampling_defaults for i in infos.infos] == [{"top_k": 7}], "it is known")

        def try_once() -> None:
            with suppress(httpx.HTTPError):
                ask(one, path, logprobs=1)

        first = threading.Thread(target=try_once)
        first.start()
        until(lambda: runs(one) and journal.exists(), "it runs")
        until(lambda: one.engine.scheduler.live, "it runs")
    first.join()
    with site(journal_path=journal) as two:
        two.engine.scheduler.reply = REPLY
        whole = ask(two, path, logprobs=1).json()
        assert whole["choices"][0]["text"] == REPLY
        assert runs(two)[0].sampling.top_k == 7
        assert (
            len(whole["choices"][0]["logprobs"]["tokens"]) == len(REPLY.encode()) + 1
        )  # and the end
        assert ask(two, path, logprobs=1).json() == whole


def test_keys_are_their_owners_and_expire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_PRUNE_SECONDS", 0.5)
    keys = tmp_path / "keys"
    rows = (f'[[key]]\nname = "{n}"\nkey = "key-of-{n}"\ntenant = "{n}"' for n in "ab")
    keys.write_text("\n".join(rows))
    path = "/v1/chat/completions"
    with site(journal_path=tmp_path / "journal", api_key_file=keys, journal_seconds=1.5) as here:
        a = ask(here, path, token="key-of-a")
        b = ask(here, path, token="key-of-b", temperature=0.5)
        assert (a.status_code, b.status_code) == (200, 200), b.text
        assert a.json()["id"] != b.json()["id"] and len(runs(here)) == 2
        again = ask(here, path, token="key-of-a")
        assert again.json() == a.json()
        until(
            lambda: ask(here, path, token="key-of-b").status_code == 200,
            "another body is welcome once the first one is forgotten",
        )
        assert len(runs(here)) == 3


def test_vectors_are_kept_whole(embedder: Whole) -> None:
    body = {"model": embedder.model, "input": ["a", "the baton"]}
    headers = {"idempotency-key": uuid4().hex}  # Its journal is not new.
    first, again = (embedder.post("/v1/embeddings", body, headers=headers) for _ in range(2))
    assert first.content == again.content and first.status_code == 200
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    other = embedder.post("/v1/embeddings", body | {"input": "b"}, headers=headers)
    assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_key_reused")
    assert embedder.post("/v1/embeddings", body | {"input": ""}, headers=headers).status_code != 200
