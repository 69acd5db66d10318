"""Jobs: leases of background responses.

A job is due when its gateway has not renewed it in time, because it was killed or cut off. The
gateway that takes it then continues the response from its stream in the journal.
"""

from __future__ import annotations

import time

import msgspec
from msgspec import structs

from baton_gateway.durable.object_store import ObjectStore, StoredObject

KIND = "job"


class JobDetails(msgspec.Struct, frozen=True):
    """Data that another gateway needs to continue and end a response."""

    response: str
    """Id of the response, and of its stream."""
    key: str
    """Name of the API key that it is charged to."""
    conversation: str | None
    """Conversation that gets its items."""
    num_input: int
    """Number of its last input items that belong to its own request."""
    attempts: int = 0
    """Number of times that it was continued."""


class Job(msgspec.Struct, frozen=True):
    """A job of this gateway, in its stored form."""

    details: JobDetails
    stored: StoredObject

    @property
    def owner(self) -> str:
        """Tenant that owns the response."""
        return self.stored.owner


class JobStore:
    """Jobs in an object store. Every method raises `Unavailable` if the store is unavailable."""

    def __init__(self, objects: ObjectStore, seconds: float) -> None:
        """
        Args:
            seconds: time after which a lease expires unless it is renewed.
        """
        self._objects, self._seconds = objects, seconds

    async def begin(self, owner: str, details: JobDetails) -> Job:
        """Create a job of this gateway."""
        new = StoredObject(_name(details.response), owner, b"")
        started = await self._put(Job(details, new))
        assert started is not None, "ids are random"
        return started

    async def take_due(self) -> list[Job]:
        """Take the jobs whose lease has expired."""
        return [_job(stored) for stored in await self._objects.take_due(KIND, self._seconds)]

    async def take(self, response: str, owner: str) -> Job | None:
        """Take the job of a response from its gateway. None if there is none, or another gateway
        takes it at the same time."""
        stored = await self._objects.get(_name(response), owner)
        return None if stored is None else await self._put(_job(stored))

    async def renew(self, job: Job) -> Job | None:
        """Renew the lease of a job. None if another gateway has it, or it was deleted."""
        left = job.stored.due - time.time()
        return job if left > self._seconds / 2 else await self._put(job)

    async def attempt(self, job: Job) -> Job | None:
        """Count an attempt to continue a job. None if another gateway has it, or it was deleted."""
        attempts = job.details.attempts + 1
        return await self._put(
            structs.replace(job, details=structs.replace(job.details, attempts=attempts))
        )

    async def release(self, job: Job, seconds: float = 0.0) -> None:
        """Release a job; any gateway may take it after some seconds."""
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


def _job(stored: StoredObject) -> Job:
    return Job(msgspec.json.decode(stored.data, type=JobDetails), stored)
