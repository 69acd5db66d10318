"""Jobs: one gateway has each, and others take it when it is due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from baton_gateway.durable.job import JobDetails, JobStore
from baton_gateway.durable.object_store import ObjectStore

DETAILS = JobDetails("resp_1", "key-1", "conv_1", 2)


def test_a_job_is_one_gateways(open_store: Callable[..., ObjectStore]) -> None:
    async def main() -> None:
        objects = open_store(), open_store()
        one, two = (JobStore(store, 60.0) for store in objects)
        job = await one.begin("me", DETAILS)
        assert await one.renew(job) is job, "there is time"
        assert await two.take_due() == [] and await two.take("resp_1", "you") is None
        taken = await two.take("resp_1", "me")
        assert taken is not None and taken.details == DETAILS and taken.owner == "me"
        assert await one.attempt(job) is None, "it is not this one's any more"
        counted = await two.attempt(taken)
        assert counted is not None and counted.details.attempts == 1
        await one.release(job)
        assert await one.take_due() == [], "nor may this one give it away"
        await two.release(counted)
        [mine] = await one.take_due()
        assert mine.details.attempts == 1
        await one.end(mine)
        assert await two.take("resp_1", "me") is None and await one.renew(mine) is mine
        for store in objects:
            await store.close()

    asyncio.run(main())


def test_what_is_not_renewed_in_time_is_due(
    open_store: Callable[..., ObjectStore], later: Callable[[float], None]
) -> None:
    async def main() -> None:
        objects = open_store()
        jobs = JobStore(objects, 300.0)
        job = await jobs.begin("me", DETAILS)
        later(200.0)
        renewed = await jobs.renew(job)
        assert renewed is not None and renewed is not job
        later(200.0)
        assert await jobs.take_due() == []
        later(200.0)
        assert len(await jobs.take_due()) == 1 and await jobs.renew(renewed) is None
        await objects.close()

    asyncio.run(main())
