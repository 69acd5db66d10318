"""What responses build upon: the response before, a conversation, references to items."""

from __future__ import annotations

import json
from typing import Any

import pytest

from baton.protocol import EncodeChat
from tests.fakes.gateway_app import Site, error_of, site
from tests.fakes.gateway_engine import MODEL

PATH = "/v1/responses"
SAID = "Hello from Baton."


def ask(here: Site, text: str, **fields: Any) -> dict[str, Any]:
    answer = here.post(PATH, {"model": MODEL, "input": text} | fields)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def rendered(here: Site) -> list[str]:
    """Texts of the newest conversation that the tokenizer was given."""
    [*_, last] = [m for m in here.engine.tokenizer.seen if isinstance(m, EncodeChat)]
    return [message["content"] for message in json.loads(last.messages)]


def test_a_response_follows_another(shared_site: Site) -> None:
    first = ask(shared_site, "a", instructions="i")
    second = ask(shared_site, "b", previous_response_id=first["id"])
    assert rendered(shared_site) == ["a", SAID, "b"], "instructions are not carried over"
    assert second["previous_response_id"] == first["id"]
    assert shared_site.request("DELETE", f"{PATH}/{first['id']}").status_code == 200
    ask(shared_site, "c", previous_response_id=second["id"])
    assert rendered(shared_site) == ["a", SAID, "b", SAID, "c"]
    gone = shared_site.post(
        PATH, {"model": MODEL, "input": "x", "previous_response_id": first["id"]}
    )
    assert gone.status_code == 404 and error_of(gone)["param"] == "previous_response_id"


def test_a_reference_stands_for_an_item(shared_site: Site) -> None:
    first = ask(shared_site, "a")
    name = first["output"][0]["id"]
    items = [{"type": "item_reference", "id": name}, {"role": "user", "content": "b"}]
    ask(shared_site, items)  # type: ignore[arg-type]
    assert rendered(shared_site) == [SAID, "b"]
    for unknown in (name + "0", "msg_1", ""):
        items[0]["id"] = unknown
        answer = shared_site.post(PATH, {"model": MODEL, "input": items})
        assert answer.status_code == 404 and error_of(answer)["param"] == "input[0].id"


def test_a_conversation_grows_with_its_responses(shared_site: Site) -> None:
    items = [{"role": "user", "content": "a"}]
    made = shared_site.post("/v1/conversations", {"items": items}).json()
    path = f"/v1/conversations/{made['id']}/items"
    first = ask(shared_site, "b", conversation=made["id"])
    assert first["conversation"] == {"id": made["id"]}
    body = {"model": MODEL, "input": "c", "conversation": {"id": made["id"]}, "stream": True}
    assert "response.completed" in shared_site.post(PATH, body).text
    assert rendered(shared_site) == ["a", "b", SAID, "c"]
    found = shared_site.get(path, params={"order": "asc"}).json()["data"]
    texts = [item["content"][0]["text"] for item in found]
    assert texts == ["a", "b", SAID, "c", SAID] and found[2]["id"] == first["output"][0]["id"]
    answer = shared_site.post(PATH, body | {"conversation": "conv_none"})
    assert answer.status_code == 404 and error_of(answer)["param"] == "conversation"


def test_what_is_not_stored_is_not_there(shared_site: Site) -> None:
    said = ask(shared_site, "a", store=False)
    assert said["store"] is False
    assert shared_site.get(f"{PATH}/{said['id']}").status_code == 404


def test_another_key_sees_nothing() -> None:
    with site(api_key="one-key,other-key") as here:
        mine, other = ({"authorization": f"Bearer {key}"} for key in ("one-key", "other-key"))
        body: dict[str, Any] = {"model": MODEL, "input": "a"}
        said = here.post(PATH, body, headers=mine).json()
        made = here.post("/v1/conversations", {}, headers=mine).json()
        paths = [f"{PATH}/{said['id']}", f"{PATH}/{said['id']}/input_items"]
        paths += [f"/v1/conversations/{made['id']}", f"/v1/conversations/{made['id']}/items"]
        for path in paths:
            assert here.get(path, headers=mine).status_code == 200
            refused = here.get(path, headers=other)
            unknown = here.get(path.replace(said["id"], "resp_0").replace(made["id"], "conv_0"),
                               headers=other)  # fmt: skip
            assert refused.status_code == unknown.status_code == 404
            assert error_of(refused)["code"] == error_of(unknown)["code"]
        for path in (paths[0], paths[2]):
            assert here.request("DELETE", path, headers=other).status_code == 404
        for field, value in (("previous_response_id", said["id"]), ("conversation", made["id"])):
            refused = here.post(PATH, body | {field: value}, headers=other)
            assert refused.status_code == 404
        reference = [{"type": "item_reference", "id": said["output"][0]["id"]}]
        assert here.post(PATH, body | {"input": reference}, headers=other).status_code == 404


@pytest.mark.parametrize("stream", [False, True])
def test_a_store_that_fails_fails_the_response(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, stream: bool
) -> None:
    (tmp_path / "store").write_bytes(b"this is not a database" * 100)
    with site(store_path=tmp_path / "store") as here:
        body = {"model": MODEL, "input": "a", "stream": stream}
        answer = here.post(PATH, body)
        if stream:
            assert "event: response.failed" in answer.text and "does not answer" in answer.text
        else:
            assert answer.status_code == 503 and error_of(answer)["code"] == "store_unavailable"
        assert here.post(PATH, body | {"store": False}).status_code == 200
