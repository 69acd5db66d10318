"""Jobs: responses that run in the background, and the gateway that looks after each.

A job is due when the gateway that has it has not renewed it in time: it was killed, or is cut off.
Whichever gateway takes it then continues the response from its stream in the journal.
"""

from __future__ import annotations

import time

import msgspec
from msgspec import structs

from baton_gateway.durable.object_store import ObjectStore, StoredObject

KIND = "job"


class JobDetails(msgspec.Struct, frozen=True):
    """What a gateway must know to end a response that another one began."""

    response: str
    """Id of the response, and of its stream."""
    key: str
    """Name of the API key that it is charged to."""
    conversation: str | None
    """Conversation that gets its items."""
    num_input: int
    """How many items of its input are its own, at the end."""
    attempts: int = 0
    """How often it was continued."""


class Job(msgspec.Struct, frozen=True):
    """A job of this gateway, as it is stored."""

    details: JobDetails
    stored: StoredObject

    @property
    def owner(self) -> str:
        """Tenant that owns the response."""
        return self.stored.owner


class JobStore:
    """Jobs in an object store. Every method raises `Unavailable` when that is unavailable."""

    def __init__(self, objects: ObjectStore, seconds: float) -> None:
        """
        Args:
            seconds: how long a job is a gateway's without being renewed.
        """
        self._objects, self._seconds = objects, seconds

    async def begin(self, owner: str, details: JobDetails) -> Job:
        """Create a job of this gateway."""
        new = StoredObject(_name(details.response), owner, b"")
        started = await self._put(Job(details, new))
        assert started is not None, "ids are random"
        return started

    async def take_due(self) -> list[Job]:
        """Return jobs whose lease has expired; this gateway holds them then."""
        return [_job(one) for one in await self._objects.take_due(KIND, self._seconds)]

    async def take(self, response: str, owner: str) -> Job | None:
        """Take the job of a response from the gateway that holds it. None if there is none, or if
        another gateway takes it at the same time."""
        found = await self._objects.get(_name(response), owner)
        return None if found is None else await self._put(_job(found))

    async def renew(self, job: Job) -> Job | None:
        """Keep a job for longer. None if it is another gateway's, or done."""
        left = job.stored.due - time.time()
        return job if left > self._seconds / 2 else await self._put(job)

    async def attempt(self, job: Job) -> Job | None:
        """Count an attempt to continue a job. None if it is another gateway's, or done."""
        attempts = job.details.attempts + 1
        return await self._put(
            structs.replace(job, details=structs.replace(job.details, attempts=attempts))
        )

    async def release(self, job: Job, seconds: float = 0.0) -> None:
        """Leave a job to whichever gateway is the first, after some seconds."""
        await self._put(job, time.time() + seconds)

    async def end(self, job: Job) -> None:
        """Delete a job."""
        await self._objects.delete(job.stored.id, job.owner)

    async def _put(self, job: Job, due: float | None = None) -> Job | None:
        due = time.time() + self._seconds if due is None else due
        data = msgspec.json.encode(job.details)
        new = structs.replace(job.stored, data=data, due=due)
        if not await self._objects.put(new):
            return None
        return Job(job.details, structs.replace(new, version=new.version + 1))


def _name(response: str) -> str:
    return f"{KIND}_{response}"


def _job(found: StoredObject) -> Job:
    return Job(msgspec.json.decode(found.data, type=JobDetails), found)
