from __future__ import annotations

import httpx
import pytest

from baton.errors import SettingsError
from baton_ops.bench.serve import Bench
from baton_ops.commands.smoke import Smoke
from baton_ops.server_url import unavailable


def test_a_url_has_its_protocol() -> None:
    assert Bench.load(["--url", "https://host:1/x"]).url == "https://host:1/x"
    assert Bench.load(["--url", ""]).url == ""
    for load in (lambda: Bench.load(["--url", "host:8000"]), lambda: Smoke.load(["host"])):
        with pytest.raises(SettingsError, match="--url: a URL begins with http://"):
            load()


def test_an_error_of_the_first_request_says_what_to_do() -> None:
    request = httpx.Request("GET", "http://host:1/v1/models")
    for status, words in ((401, "with --key"), (500, "does not list its models: 500")):
        error = httpx.HTTPStatusError("500", request=request, response=httpx.Response(status))
        assert words in unavailable("http://host:1", error).message
    unreachable = unavailable("http://host:1", httpx.ConnectError("refused"))
    assert unreachable.message.startswith("No server answers at http://host:1 (refused).")
