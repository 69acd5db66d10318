"""Names and addresses of replicas."""

from __future__ import annotations

from pathlib import Path

from baton_ops.supervisor.replicas import flags, names, variables

RUN = Path("/run/b")


def test_one_of_each_is_called_as_ever_and_told_nothing() -> None:
    assert flags(RUN, {"gateway": 1, "tokenizer": 1}) == {
        "gateway": ["gateway"],
        "tokenizer": ["tokenizer"],
    }
    assert variables(RUN, {"gateway": 1, "tokenizer": 1}) == {}


def test_several_have_numbers() -> None:
    assert names("gateway", 3) == ["gateway-1", "gateway-2", "gateway-3"]
    started = flags(RUN, {"gateway": 2, "scheduler": 1})
    assert started == {
        "gateway-1": ["gateway"],
        "gateway-2": ["gateway"],
        "scheduler": ["scheduler"],
    }
    assert variables(RUN, {"gateway": 2}) == {"BATON_GATEWAY_SHARED_PORT": "true"}


def test_every_tokenizer_listens_elsewhere_and_gateways_know_all() -> None:
    started, given = flags(RUN, {"tokenizer": 2}), variables(RUN, {"tokenizer": 2})
    bound = [command[command.index("--bind") + 1] for command in started.values()]
    assert len(set(bound)) == 2
    assert given == {"BATON_TOKENIZER_ADDRESS": ",".join(bound)}
