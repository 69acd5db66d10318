"""Cancellation of work on client disconnect."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from baton_gateway.http.disconnect import ClientDisconnected, cancel_on_disconnect


async def _never() -> dict[str, Any]:
    await asyncio.Event().wait()
    return {}


async def _leaves() -> dict[str, Any]:
    await asyncio.sleep(0.01)
    return {"type": "http.disconnect"}


def test_result_and_error_pass_through() -> None:
    async def good() -> int:
        return 5

    async def bad() -> int:
        raise KeyError

    async def main() -> None:
        assert await cancel_on_disconnect(_never, good()) == 5
        with pytest.raises(KeyError):
            await cancel_on_disconnect(_never, bad())
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_departure_cancels_the_work_and_waits_for_its_clean_up() -> None:
    async def main() -> None:
        steps = []

        async def work() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0)
                steps.append("cleaned")

        with pytest.raises(ClientDisconnected):
            await cancel_on_disconnect(_leaves, work())
        assert steps == ["cleaned"]

    asyncio.run(main())
