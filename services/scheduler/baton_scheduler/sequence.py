"""One sequence from its arrival to its end, and its token log.

        place            first token           token = limit, stop, abort, failure
queued -------> prefill -------------> decode -----------------------------------> ended
   ^               |                      |
   +--- preempt ---+-- worker is lost ----+
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from baton.protocol import NewSequence, Pooling, QueueEstimate, Sampling, Submit
from baton.protocol.token_columns import pack, unpack
from baton_scheduler.kv.prefix_cache import BlockHashes
from baton_scheduler.phase_times import PhaseTimer

Key: TypeAlias = tuple[int, int]
"""Position in the order of service: lower runs first, equal never happens."""


@dataclass(slots=True, eq=False)
class Sequence:
    """All that is needed to run a sequence, and to run it again: the request and the log."""

    gateway: str
    submit: Submit
    trace: str
    arrival: int
    """Number of this sequence among all that ever arrived."""
    since: float
    """When it arrived, in the state's time."""
    num_prompt: int
    log: array[int]
    """Tokens produced so far; only ever appended to."""
    phase_timer: PhaseTimer
    """Where its time goes."""
    key: Key = (0, 0)
    losses: int = 0
    """Times that a worker was lost with this sequence in its batch."""
    failures: int = 0
    """Times that passing it on to another worker has failed."""
    worker: str | None = None
    """Who runs it; None while it waits."""
    slot: int = -1
    ended: bool = False
    deadline: float | None = None
    """When it ends in an error, in the state's time."""
    billed_tenant: int = 0
    """Number of the account that pays for its tokens, under an order that keeps accounts."""
    cached: int | None = None
    """Prompt tokens that its first placement found in the cache, until its gateway is told."""
    estimate: QueueEstimate | None = None
    """What its gateway is told with its first tokens, until then."""
    leader: Sequence | None = None
    """The first choice of the same request: it computes the prompt for all of them."""
    bound: str = ""
    """While its prompt is computed, the worker that pulls what there is of it already."""
    ahead: int = 0
    """How many tokens that worker has been told to pull."""
    begun: bool = False
    """The keys of its prompt are in pages that others can share."""
    _chain: BlockHashes | None = None

    @property
    def handle(self) -> int:
        """The gateway's name for it."""
        return self.submit.handle

    @property
    def sampling(self) -> Sampling:
        """How its tokens are chosen."""
        return self.submit.sampling

    @property
    def pooling(self) -> Pooling | None:
        """What vector is wanted of it; None when tokens are."""
        return self.submit.pooling

    @property
    def whole(self) -> bool:
        """All its tokens must run in one step."""
        return self.pooling is not None and self.pooling.reach == "whole"

    @property
    def num_tokens(self) -> int:
        """Prompt and log together: what a worker must compute before it can go on."""
        return self.num_prompt + len(self.log)

    @property
    def scores_only(self) -> bool:
        """Nothing is sampled: log-probabilities of the prompt are wanted, or a vector."""
        return self.sampling.max_tokens == 0

    @property
    def waits(self) -> bool:
        """It is not to start yet: what it would compute is being computed by its leader."""
        leader = self.leader
        return leader is not None and not (leader.begun or leader.ended)

    @property
    def fresh(self) -> bool:
        """No token of it was ever sampled, here or under another scheduler."""
        return not self.phase_timer.started and not self.submit.log

    @property
    def complete(self) -> bool:
        """There is nothing to compute: the log is full, and no prompt token is to be scored."""
        wants_scores = self.sampling.prompt_logprobs >= 0 and self.num_prompt > 1
        if self.scores_only:
            return not wants_scores and self.pooling is None
        return len(self.log) >= self.sampling.max_tokens

    @property
    def reusable(self) -> int:
        """Tokens whose keys may come from a cache: the last one must run, and so must all of a
        prompt that is still to be scored, or whose hidden states make a vector."""
        if self.pooling is not None and self.pooling.reach != "last":
            return 0
        unscored = self.sampling.prompt_logprobs >= 0 and not self.log
        return 0 if unscored else self.num_tokens - 1

    def chain(self, size: int) -> BlockHashes:
        """Names of its blocks of `size` tokens."""
        if self._chain is None or self._chain.size != size:
            self._chain = BlockHashes(self.submit, self.log, size)
        return self._chain

    def follow(self, other: Sequence) -> None:
        """Wait for another choice of the same request, if `other` is one and can be shared with."""
        one, two = other.submit, self.submit
        if one.request != two.request or one.tokens != two.tokens:
            return
        if (one.tenant, one.salt) == (two.tenant, two.salt) and other.reusable and self.reusable:
            self.leader = other.leader or other

    def place(self, worker: str, slot: int) -> None:
        """queued -> prefill."""
        assert not self.ended and self.worker is None
        self.worker, self.slot = worker, slot
        self.bound, self.ahead = "", 0

    def leave(self) -> None:
        """prefill or decode -> queued."""
        assert self.worker is not None
        self.worker, self.slot = None, -1

    def end(self) -> None:
        """To the end, from wherever it is; exactly once."""
        assert not self.ended and self.worker is None
        self.ended = True

    def entry(self, computed: int = 0) -> NewSequence:
        """What a worker is told, who has the keys of `computed` tokens in the pages that it gets.

        The prompt is scored once: a log proves that it was.
        """
        sampling = self.sampling
        if self.log and sampling.prompt_logprobs >= 0:
            sampling = msgspec.structs.replace(sampling, prompt_logprobs=-1)
        return NewSequence(
            slot=self.slot,
            tokens=self.submit.tokens + pack(self.log),
            num_prompt=self.num_prompt,
            sampling=sampling,
            request=self.submit.request,
            trace=self.trace,
            num_computed=computed,
            pooling=self.pooling,
            media=self.submit.media,
        )


def sequence(
    gateway: str,
    submit: Submit,
    trace: str,
    arrival: int,
    now: float,
    order: Callable[[Sequence], Key],
) -> Sequence:
    """A sequence as it arrives. Raises `ValueError` when it is not what a gateway may send."""
    if not 0 <= submit.handle < 2**32 or not 0 <= submit.sampling.max_tokens < 2**31:
        raise ValueError("a number of the submission is out of range")
    if submit.pooling is not None and (submit.sampling.max_tokens or submit.log):
        raise ValueError("a vector was asked for together with tokens")
    num_prompt, log = len(unpack(submit.tokens)), unpack(submit.log)
    new = Sequence(gateway, submit, trace, arrival, now, num_prompt, log, PhaseTimer(now))
    new.key = order(new)
    return new
