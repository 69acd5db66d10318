"""The Conversations API."""

from __future__ import annotations

import pytest
from openai import NotFoundError, OpenAI

from tests.fakes import gateway_socket
from tests.fakes.gateway_app import Site, error_of

PATH = "/v1/conversations"


def test_openais_client_manages_conversations() -> None:
    with gateway_socket.site() as here:
        client = OpenAI(base_url=f"{here.url}/v1", api_key="none", max_retries=0).conversations
        item = {"type": "message", "role": "user", "content": "a"}
        made = client.create(items=[item], metadata={"a": "b"})  # type: ignore[list-item]
        assert client.retrieve(made.id).metadata == {"a": "b"}
        assert client.update(made.id, metadata={"c": "d"}).metadata == {"c": "d"}
        added = client.items.create(made.id, items=[item, item])  # type: ignore[list-item]
        listed = list(client.items.list(made.id, limit=2, order="asc"))
        assert len(listed) == 3 and listed[1].id == added.first_id
        assert client.items.retrieve(added.first_id, conversation_id=made.id).type == "message"
        client.items.delete(added.first_id, conversation_id=made.id)
        assert len(list(client.items.list(made.id))) == 2
        for gone in (client.items.retrieve, client.items.delete):
            with pytest.raises(NotFoundError):
                gone(added.first_id, conversation_id=made.id)
        assert client.delete(made.id).deleted
        with pytest.raises(NotFoundError):
            client.retrieve(made.id)


def test_refusals_name_the_field(shared_site: Site) -> None:
    made = shared_site.post(PATH, {}).json()
    refused = shared_site.post(f"{PATH}/{made['id']}/items", {"items": [{"type": "x"}]})
    assert error_of(refused)["param"] == "items[0].type"
    refused = shared_site.post(f"{PATH}/{made['id']}", {"metadata": {"a": 5}})
    assert error_of(refused)["param"] == "metadata"
    refused = shared_site.get(f"{PATH}/{made['id']}/items", params={"limit": 1000})
    assert error_of(refused)["param"] == "limit"
