"""Media encoded apart: sequences wait, nothing is encoded twice, and no loss is ever seen."""

from __future__ import annotations

import random

import pytest

from baton.protocol import Blob, Media, Sampling
from baton_scheduler.disaggregation import encoding
from baton_scheduler.events import DeathExplained
from tests.fakes.hash_worker import worker_info
from tests.support.scheduler_world import Request, World

COUNT = 8
LARGE = 160
"""Tokens of an image before which a sequence is worth starting."""


def world(*names: str, encoders: tuple[str, ...] = ("e",)) -> World:
    """Workers that prefill, and encode workers."""
    made = World()
    for name in names or ("w",):
        made.join(name, worker_info(encoder_layout="f32"))
    for name in encoders:
        made.join_encoder(name)
    return made


def image(name: str, start: int, count: int = COUNT) -> Media:
    return Media(name.encode() * 32, start, count, Blob("float32", (1,), bytes(4)))


def seen(made: World, names: str, tenant: str = "", seed: int = 1, count: int = COUNT) -> Request:
    """A request with one image of `count` tokens per letter, behind one token each."""
    media = tuple(image(n, 1 + k * (count + 1), count) for k, n in enumerate(names))
    prompt = [7 + ord(n) for n in names for _ in range(count + 1)] + [1, 2]
    return made.submit(prompt, Sampling(6, seed=seed), media=media, tenant=tenant)


def answered(*requests: Request) -> bool:
    return all(r.failed is None and r.tokens == r.expected[0] for r in requests)


@pytest.mark.row("F20.02")
def test_images_are_encoded_in_parallel_and_arrive_before_their_sequence_starts() -> None:
    made = world(encoders=("e1", "e2"))
    request = seen(made, "ab")
    text = made.submit([5, 6, 7], Sampling(3, seed=2))
    made.tick()
    assert [len(peer.orders) for peer in made.encoders.values()] == [1, 1]
    for _ in range(8):  # Texts behind it in the queue do not wait for it.
        made.run()
        made.deliver()
        made.tick()
    assert text.end and not request.tokens and not made.media_pulls
    assert made.encode("e1") and made.encode("e2")
    made.tick()
    assert len(made.media_pulls["w"]) == 2 and made.state.num_running == 0
    assert made.pull_media() and made.pull_media()
    made.finish()
    made.tick()
    assert answered(request) and len(made.encoded) == 2
    assert not any(peer.offered for peer in made.encoders.values())
    assert made.state.encodings.counters.pulled == 2


@pytest.mark.row("F20.02")
def test_a_sequence_starts_while_its_last_images_are_encoded() -> None:
    made = world()
    request = seen(made, "ab", count=LARGE)
    made.tick()
    assert made.encode()
    made.tick()
    assert made.pull_media()
    for _ in range(5):
        made.tick()
        made.run()
        made.deliver()
    [worker] = made.state.fleet
    batch = worker.batch
    assert batch.num_scheduled[0] == LARGE + 2 and not batch.pending_prefill_tokens
    text = made.submit([5, 6, 7], Sampling(3, seed=2))
    for _ in range(8):  # It waits without work, and delays no other.
        made.tick()
        made.run()
        made.deliver()
    assert text.end and not request.tokens and made.state.num_running == 1
    assert made.encode()
    made.tick()
    assert made.pull_media()
    made.finish()
    assert answered(request) and len(made.encoded) == 2
    assert made.state.encodings.counters.pulled == 2


@pytest.mark.parametrize("loss", ["encoder", "worker", "pull", "abort", "refused", "pages"])
def test_what_a_started_sequence_waits_for_may_be_lost(loss: str) -> None:
    made = world("w", "v", encoders=("e",))
    request, other = seen(made, "ab", count=LARGE), seen(made, "b", seed=2, count=LARGE)
    made.tick()
    assert made.encode()
    made.tick()
    [name] = made.media_pulls
    assert made.pull_media(name)
    made.tick()
    assert made.state.num_running == 1
    if loss == "encoder":
        made.lose_encoder()
    elif loss == "worker":
        made.lose_worker(name)
    elif loss == "abort":
        made.abort("g", 1)
    elif loss == "refused":
        made.encode(refused="not finite")
    elif loss == "pages":  # It is preempted, and waits in the queue again.
        worker = made.state.fleet.get(name)
        assert worker is not None
        made.state.requeue([worker.evict(0)])
        made.state.check()
    else:
        made.encode()
        made.tick()
        assert made.pull_media(name, reason="the network is gone")
    made.finish()
    if loss == "refused":
        assert request.failed is not None and other.failed is not None
    else:
        assert answered(other) and (answered(request) or loss == "abort")
    assert not list(made.state.encodings)


def test_one_key_is_encoded_once() -> None:
    """Two sequences share what is in flight, unless their tenants differ; a picture that a worker
    has seen needs no encoder."""
    made = world(encoders=("e1", "e2"))
    requests = [seen(made, "a"), seen(made, "a", seed=2), seen(made, "a", tenant="other")]
    made.finish()
    assert answered(*requests) and len(made.encoded) == 2
    requests.append(seen(made, "a", seed=3))
    made.finish()
    assert answered(*requests) and len(made.encoded) == 2
    assert made.state.encodings.counters.shared == 2


def test_a_lost_encode_worker_costs_time_only() -> None:
    """While it encodes, and while its embeddings are pulled; the last one leaves the images to the
    worker that prefills."""
    made = world(encoders=("e1", "e2"))
    request = seen(made, "a")
    made.tick()
    busy = next(name for name, peer in made.encoders.items() if peer.orders)
    made.lose_encoder(busy)
    [other] = made.encoders
    made.tick()
    assert made.encode(other)
    made.tick()
    assert made.media_pulls["w"]
    made.lose_encoder(other)
    made.finish()
    assert answered(request) and made.state.encodings.counters.retried == 2
    made.join_encoder("e3")
    assert not made.pull_media() and made.state.encodings.counters.pulled == 0


@pytest.mark.parametrize("causes", ["inside inside", "outside unknown", "unknown explained"])
def test_only_what_encode_workers_die_of_from_inside_is_refused(causes: str) -> None:
    made = world(encoders=("e0", "e1", "e2"))
    request, other = seen(made, "a"), seen(made, "b", seed=2)
    for cause in causes.split():
        made.tick()
        key = made.state.encodings.of(made.state.sequences()[0])[0].item.digest
        first = {n: e.orders[0].item.digest for n, e in made.encoders.items() if e.orders}
        name = next(name for name, digest in first.items() if digest == key)
        epoch = made.encoders[name].epoch
        made.lose_encoder(name, "unknown" if cause == "explained" else cause)  # type: ignore[arg-type]
        if cause == "explained":
            made.apply(DeathExplained(epoch, "inside"))
    made.finish()
    assert answered(other)
    if causes == "inside inside":
        assert request.failed is not None and request.failed.status == 400
        assert "image" in request.failed.message
    else:
        assert answered(request)


def test_an_image_that_cannot_be_encoded_ends_its_own_requests_alone() -> None:
    made = world()
    bad, good = seen(made, "a"), seen(made, "b", seed=2)
    made.tick()
    assert made.encode(refused="the embeddings of an image are not finite")
    made.finish()
    assert bad.failed is not None and bad.failed.status == 400
    assert "not finite" in bad.failed.message and answered(good)


def test_embeddings_that_do_not_arrive_are_encoded_where_they_are_needed() -> None:
    made = world()
    request = seen(made, "a")
    for _ in range(2):
        made.tick()
        made.encode()
        made.tick()
        assert made.pull_media(reason="the network is gone")
    made.finish()
    assert answered(request) and made.state.encodings.counters.failed_pulls == 2


def test_a_worker_that_is_lost_with_the_embeddings_is_replaced_by_another() -> None:
    made = world("w", "v")
    request = seen(made, "a")
    made.tick()
    made.encode()
    made.tick()
    [name] = made.media_pulls
    made.lose_worker(name)
    made.finish()
    assert answered(request) and len(made.encoded) == 1


def test_pixels_of_a_request_that_has_ended_are_those_of_another_that_waits() -> None:
    made = world()
    first, second = seen(made, "a", seed=2), seen(made, "a")
    made.tick()
    made.abort("g", 1)
    made.tick()
    assert made.encode(missing=True)
    made.finish()
    assert first.end == "abort" and answered(second) and len(made.encoded) == 1
    third = seen(made, "b")
    for _ in range(2):
        made.tick()
        assert made.encode(missing=True)
    made.finish()
    assert answered(third) and len(made.encoded) == 1, "the worker that prefills encodes it"


def test_what_nobody_waits_for_is_revoked() -> None:
    made = world()
    seen(made, "a")
    made.tick()
    made.abort("g", 1)
    made.tick()
    assert made.encode() and not made.encoded
    made.tick()
    assert not list(made.state.encodings) and made.state.idle


def test_a_model_that_takes_other_embeddings_encodes_itself() -> None:
    made = World()
    made.join("w", worker_info(encoder_layout="bf16"))
    made.join_encoder("e")
    request = seen(made, "a")
    made.finish()
    assert answered(request) and not made.encoded


def test_any_history_ends_with_every_answer_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random losses, failures and aborts of everything, at any moment. In every second history
    sequences start as soon as a token of theirs can run."""
    for seed in range(20):
        monkeypatch.setattr(encoding, "LEAST_PREFILL", 1 if seed % 2 else 128)
        rng, made = random.Random(seed), world("w0", "w1", encoders=("e0", "e1"))
        requests = list[Request]()
        for step in range(80):
            _happen(rng, made, requests, step)
        for name in ("w0", "w1"):
            made.join(name, worker_info(encoder_layout="f32"))
        made.finish()
        assert all(answered(r) for r in requests if r.end != "abort"), seed
        made.tick()
        assert not list(made.state.encodings)
        assert not any(peer.offered for peer in made.encoders.values())


def _happen(rng: random.Random, made: World, requests: list[Request], step: int) -> None:
    """One thing happens."""
    worker, encoder = f"w{rng.randrange(2)}", f"e{rng.randrange(2)}"
    kind = rng.choices(range(9), (4, 8, 6, 6, 4, 1, 1, 1, 1))[0]
    if kind == 0:
        names = "".join(rng.sample("abcd", rng.randrange(1, 4)))
        requests.append(seen(made, names, rng.choice(("", "t")), seed=step))
    elif kind == 1:
        made.tick()
    elif kind == 2 and encoder in made.encoders:
        made.encode(encoder, seconds=rng.choice((0.0, 0.1)))
    elif kind == 3 and worker in made.peers:
        made.pull_media(worker, reason=rng.choice(("", "", "lost")))
    elif kind == 4 and worker in made.peers and made.run(worker):
        made.deliver(worker)
    elif kind == 5 and encoder in made.encoders:
        made.lose_encoder(encoder, rng.choice(("outside", "unknown")))
    elif kind == 6 and encoder not in made.encoders:
        made.join_encoder(encoder)
    elif kind == 7:
        made.media_pulls.pop(worker, None)
        made.join(worker, worker_info(encoder_layout="f32"))
    elif kind == 8 and requests:
        alive = [h for (_, h), r in made.requests.items() if r.end is None]
        if alive:
            made.abort("g", rng.choice(alive))
