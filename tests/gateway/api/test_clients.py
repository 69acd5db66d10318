"""Frameworks over the Responses, chat and Messages APIs, as their users point them at a server.

The model's words are given, so what is shown is that a framework understands every answer and that
the gateway understands what it sends back.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from tests.fakes.gateway_engine import MODEL
from tests.fakes.gateway_socket import Site, site
from tests.support.served_system import until

pytestmark = pytest.mark.filterwarnings("ignore")  # theirs

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
SUM = "The sum is 3."


class Point(BaseModel):
    """What a client wants to have parsed."""

    x: int


@pytest.fixture(scope="module")
def here() -> Iterator[Site]:
    """A gateway whose model calls tools in Hermes' format, and says the sum otherwise."""
    with site(max_concurrent_requests=64) as one:
        one.engine.tokenizer.tool_call_parser = "hermes"
        one.engine.tokenizer.restart()
        until(
            lambda: [i.tool_call_parser for i in one.engine.tokenizers.infos] == ["hermes"],
            "the format is known",
        )
        one.engine.scheduler.reply, one.engine.scheduler.max_length = SUM, 4096
        until(lambda: length_of(one) == 4096, "its length is known")
        yield one


@pytest.fixture(autouse=True)
def cleaned() -> Iterator[None]:
    """What frameworks leave unclosed is closed or collected here, not in the middle of another
    test: their functions without `async` make an event loop of the thread that stays open."""
    with asyncio.Runner() as runner:
        runner.get_loop()
        yield
    gc.collect()


def length_of(here: Site) -> int:
    """Context length of the model, as clients are told."""
    [model] = httpx.get(f"{here.url}/v1/models").json()["data"]
    return int(model["max_model_len"])


def say(here: Site, *replies: str) -> None:
    """The next requests get these answers."""
    assert not here.engine.scheduler.replies, "each was used"
    here.engine.scheduler.replies = list(replies)


def test_openai_agents(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tool loops, whole and streamed; sessions in conversations; responses that follow others."""
    import asyncio

    import agents
    from openai import AsyncOpenAI

    agents.set_tracing_disabled(True)
    added = []

    @agents.function_tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        added.append((a, b))
        return a + b

    async def main() -> None:
        client = AsyncOpenAI(base_url=f"{here.url}/v1", api_key="none", max_retries=0)
        for kind in (agents.OpenAIResponsesModel, agents.OpenAIChatCompletionsModel):
            agent: Any = agents.Agent(name="x", model=kind(MODEL, client), tools=[add])
            say(here, f"I add.{CALL}")
            assert (await agents.Runner.run(agent, "1 + 2?")).final_output == SUM
            say(here, f"I add.{CALL}")
            run = agents.Runner.run_streamed(agent, "1 + 2?")
            assert len([event async for event in run.stream_events()]) > 20
            assert run.final_output == SUM
        assert added == [(1, 2)] * 4
        agent = agents.Agent(name="y", model=agents.OpenAIResponsesModel(MODEL, client))
        session = agents.OpenAIConversationsSession(openai_client=client)
        for text in ("a", "b"):
            last = await agents.Runner.run(agent, text, session=session)
        assert len(await session.get_items()) == 4
        await agents.Runner.run(agent, "c", previous_response_id=last.last_response_id)
        await client.close()

    asyncio.run(main())


def test_anthropics_client_learns_the_context_length(here: Site) -> None:
    from anthropic import Anthropic, BadRequestError

    client = Anthropic(base_url=here.url, api_key="none", max_retries=0)
    [model] = client.models.list().data
    assert (model.id, model.max_input_tokens) == (MODEL, 4096)
    assert client.models.retrieve(MODEL) == model

    def ask(text: str, most: int) -> None:
        turns: Any = [{"role": "user", "content": text}]
        client.messages.create(model=MODEL, max_tokens=most, messages=turns)

    with pytest.raises(BadRequestError, match=r"prompt is too long: \d+ tokens > 4096 maximum"):
        ask("x" * 5000, 9)
    with pytest.raises(BadRequestError, match="prompt is too long: more > 4096 maximum"):
        ask("x" * 3_000_000, 9)
    with pytest.raises(BadRequestError, match=r"context limit: \d+ \+ 4000 > 4096, decrease"):
        ask("x" * 200, 4000)


def test_anthropics_tool_runner_goes_on_without_a_thread(here: Site) -> None:
    from anthropic import Anthropic, beta_tool

    @beta_tool
    def add(a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)

    client = Anthropic(base_url=here.url, api_key="none", max_retries=0)
    turns: Any = [{"role": "user", "content": "1 + 2?"}]
    say(here, f"I add.{CALL}")
    runner = client.beta.messages.tool_runner(
        model=MODEL, max_tokens=99, tools=[add], messages=turns
    )
    [block] = runner.until_done().content
    assert block.type == "text" and block.text == SUM


@pytest.mark.parametrize("api", ["responses", "chat", "messages"])
def test_langchain(here: Site, api: str) -> None:
    from langchain_anthropic import ChatAnthropic
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    @tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    if api == "messages":
        model: Any = ChatAnthropic(model=MODEL, base_url=here.url, api_key="none", max_tokens=99)
    else:
        model = ChatOpenAI(
            model=MODEL,
            base_url=f"{here.url}/v1",
            api_key="none",
            use_responses_api=api == "responses",
        )
    assert model.invoke("hi").text == SUM
    assert "".join(chunk.text for chunk in model.stream("hi")) == SUM
    bound = model.bind_tools([add])
    turns: list[Any] = [HumanMessage("1 + 2?")]
    say(here, f"I add.{CALL}")
    turns.append(bound.invoke(turns))
    [call] = turns[-1].tool_calls
    assert call["args"] == {"a": 1, "b": 2}
    turns.append(ToolMessage("3", tool_call_id=call["id"]))
    final = bound.invoke(turns)
    assert final.text == SUM and final.usage_metadata["total_tokens"] > 0
    say(here, CALL)
    parts = list(model.bind_tools([add], tool_choice="any").stream("1 + 2?"))
    whole = parts[0]
    for part in parts[1:]:
        whole += part
    assert [call["args"] for call in whole.tool_calls] == [{"a": 1, "b": 2}]


@pytest.mark.parametrize("api", ["responses", "chat", "messages"])
def test_pydantic_ai(here: Site, api: str, caplog: pytest.LogCaptureFixture) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    caplog.set_level(logging.ERROR)
    if api == "messages":
        model: Any = AnthropicModel(
            MODEL, provider=AnthropicProvider(base_url=here.url, api_key="none")
        )
    else:
        kind = OpenAIResponsesModel if api == "responses" else OpenAIChatModel
        model = kind(MODEL, provider=OpenAIProvider(base_url=f"{here.url}/v1", api_key="none"))
    agent = Agent(model, instructions="Be brief.", model_settings={"max_tokens": 99})

    @agent.tool_plain
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    say(here, f"I add.{CALL}")
    first = agent.run_sync("1 + 2?")
    assert first.output == SUM
    assert agent.run_sync("sure?", message_history=first.all_messages()).output == SUM
    say(here, CALL.replace('"add"', '"final_result"').replace('"a": 1, "b": 2', '"x": 5'))
    typed: Any = Agent(model, output_type=Point, model_settings={"max_tokens": 99})
    assert typed.run_sync("A number?").output == Point(x=5)
