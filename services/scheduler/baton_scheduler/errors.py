"""All errors with which the scheduler ends a sequence."""

from __future__ import annotations

from math import ceil

from baton.protocol import Failed

_UNKNOWN_WAIT = 30
"""Retry-After in seconds while no throughput has been measured."""
_RESTART_WAIT = 5
"""Retry-After in seconds while this process is being replaced."""


def retry_after(num_tokens: int, rate: float) -> int:
    """Seconds, 1 .. 120, to compute `num_tokens` at `rate` tokens per second."""
    if rate <= 0.0:
        return _UNKNOWN_WAIT
    return min(120, max(1, ceil(num_tokens / rate)))


def overloaded(handle: int, seconds: int) -> Failed:
    """The queue is full."""
    message = f"Too many requests are waiting. Try again in {seconds} seconds."
    return Failed(handle, "server_is_overloaded", message, 503, seconds)


def over_share(handle: int, seconds: int) -> Failed:
    """The tenant's share of the queue is full."""
    message = f"You have too many requests waiting. Try again in {seconds} seconds."
    return Failed(handle, "rate_limit_exceeded", message, 429, seconds)


def queue_timeout(handle: int, seconds: int) -> Failed:
    """The deadline passed while the sequence was queued."""
    message = f"The request's deadline passed while it waited. Try again in {seconds} seconds."
    return Failed(handle, "queue_timeout", message, 503, seconds)


def deadline_exceeded(handle: int, num_tokens: int) -> Failed:
    """The deadline passed while the sequence was running."""
    message = (
        f"The request's deadline passed after {num_tokens} tokens. Allow it more time, or ask for "
        "fewer tokens."
    )
    return Failed(handle, "deadline_exceeded", message, 504)


def shutting_down(handle: int) -> Failed:
    """The scheduler drains or ends."""
    message = "The server is shutting down. Send the request again."
    return Failed(handle, "shutting_down", message, 503, _RESTART_WAIT)


def no_worker(handle: int, seconds: float) -> Failed:
    """No worker has joined to run the sequence."""
    wait = min(120, max(1, ceil(seconds)))
    message = f"No worker has been available for {seconds:g} seconds. Try again later."
    return Failed(handle, "no_worker", message, 503, wait)


def too_long(handle: int, num_tokens: int, max_model_len: int) -> Failed:
    """The sequence exceeds the maximum length of every present worker."""
    message = (
        f"The prompt has {num_tokens} tokens, but a worker holds at most {max_model_len} tokens of "
        "one sequence, prompt and output together. Shorten the prompt."
    )
    return Failed(handle, "context_length_exceeded", message, 400)


def span_too_long(handle: int, num_tokens: int, budget: int) -> Failed:
    """A media item whose tokens must run in one step exceeds the step of every worker."""
    message = (
        f"An image of this prompt has {num_tokens} tokens that see one another in both directions "
        f"and run in one step, but a step has at most {budget} tokens. Send a smaller image, or "
        f"start the workers with --max-num-batched-tokens {num_tokens}."
    )
    return Failed(handle, "image_too_large", message, 400)


def paused(handle: int) -> Failed:
    """An operator has paused the model with mode abort."""
    message = "The model was paused by its operator. Send the request again later."
    return Failed(handle, "model_paused", message, 503, _UNKNOWN_WAIT)


def weights_changed(handle: int) -> Failed:
    """The model gets other weights, with mode abort."""
    message = "The weights of the model are being changed by its operator. Send the request again."
    return Failed(handle, "weights_changed", message, 503, _UNKNOWN_WAIT)


def no_adapter(handle: int) -> Failed:
    """No worker has the adapter any more."""
    message = "The adapter of this request is not loaded any more. Load it again, then send this."
    return Failed(handle, "model_not_found", message, 404)


def empty_prompt(handle: int) -> Failed:
    """The prompt has no tokens."""
    return Failed(handle, "empty_prompt", "The prompt must have at least one token.", 400)


def bad_frame(handle: int) -> Failed:
    """A token column from the gateway has an invalid length."""
    return Failed(handle, "bad_frame", "The request was damaged between two services.", 500)


def quarantined(handle: int, times: int) -> Failed:
    """The sequence crashes workers, or steps keep losing its token."""
    message = (
        f"A worker failed {times} times while it ran this request alone. It is not tried again."
    )
    return Failed(handle, "request_quarantined", message, 500)


def bad_media(handle: int, reason: str) -> Failed:
    """A media item of the sequence cannot be encoded."""
    message = f"An image of this request cannot be used: {reason}. Send another file."
    return Failed(handle, "invalid_image", message, 400)


def bad_grammar(handle: int, reason: str) -> Failed:
    """The grammar of the sequence cannot be followed any further."""
    message = f"The grammar of this request cannot be followed any further: {reason}."
    return Failed(handle, "grammar_too_complex", message, 400)


def broken(handle: int, reason: str) -> Failed:
    """The worker could not compute the sequence."""
    return Failed(handle, "internal_error", f"The model could not go on: {reason}", 500)
