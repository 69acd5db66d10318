"""The worker as a service: register with the scheduler, run its plans in order, send results."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from baton import __version__
from baton.checkpoint.hub import resolve as fetch
from baton.checkpoint.hub import served_name
from baton.errors import BatonError
from baton.kv.page_hashes import HashStore, PageHashTable
from baton.logs import logger
from baton.net.curve import own_keys
from baton.net.discovery import Directory, directory
from baton.net.handshake import Greeting, incarnation, unique_identity
from baton.net.sockets import Client, wait
from baton.net.topology import FLEET
from baton.process import standby
from baton.process.lifecycle import Heartbeat, Lifecycle, default_name, process_id
from baton.process.segments import Segments
from baton.process.watchdog import pulse
from baton.protocol import (
    Action,
    Drain,
    DropWeights,
    Envelope,
    Grant,
    Hello,
    LoadWeights,
    Message,
    PageHashes,
    Plan,
    Pull,
    Pulled,
    Result,
    Revoke,
    SetRole,
    Sleep,
    SwitchWeights,
    TruncatePlan,
    UpdateWeights,
    WakeUp,
    WorkerCommand,
    WorkerInfo,
    WorkerReply,
)
from baton_worker.config import Config
from baton_worker.encode_worker.service import serve as encode
from baton_worker.engine.batch.plan_columns import PlanError
from baton_worker.engine.engine import Engine
from baton_worker.engine.memory import has_room
from baton_worker.engine.plan_queue import PlanQueue
from baton_worker.engine.sleeping_engine import NoTransfers, SleepingEngine
from baton_worker.executor.kv_transfer import LeaderKVTransfer
from baton_worker.kv_cache.persistent_cache import PersistentCache
from baton_worker.kv_transfer.embedding_puller import EmbeddingPuller
from baton_worker.kv_transfer.manager import KVTransferManager, host
from baton_worker.kv_transfer.vllm_config import resolve
from baton_worker.lora.loader import AdapterLoader
from baton_worker.weight_transfer.contents import check
from baton_worker.weight_transfer.spool import WeightSpool
from baton_worker.weight_transfer.updater import WeightUpdater

_IDLE_SECONDS = 0.05
"""Longest sleep without a message: how late a signal or a lost registration is noticed."""
_TRANSFER_SECONDS = 0.002
"""As above while KV is in transit: bounds the delay before its arrival is noticed."""
_LOCKSTEP_SECONDS = 0.005
"""The same where other workers wait for this one before they take a step."""
_POLL_SECONDS = 5e-5
"""How often a step in flight is looked at while no plan is here: ZeroMQ waits for milliseconds."""
_ROOM_SECONDS = 5.0
"""How often a standby looks whether there is room for its weights."""
_MOST_PLANS = 64
"""Plans that may wait. A scheduler keeps a few in flight; more is a fault on its side."""

log = logger(__name__)


class Service:
    """One engine, one scheduler.

    Each registration is an epoch of its own: when the scheduler no longer knows this worker (it
    restarted, or declared the worker lost), the batch is dropped and a new incarnation sends Hello.
    Plans of older epochs are dropped.
    """

    def __init__(
        self,
        engine: Engine,
        config: Config,
        where: Directory,
        life: Lifecycle,
        kept: HashStore | None = None,
    ) -> None:
        """`kept` has the hashes of the engine's pages."""
        self._engine: Engine | SleepingEngine = engine
        self._where, self._life, self._config = where, life, config
        self._kept = kept
        self._name = config.name or default_name("worker")
        self._relay: KVTransferManager | LeaderKVTransfer | NoTransfers
        self._relay = relay = engine.relay(config, self._name)
        self._embeddings = embedding_puller(engine, config, self._name, relay)
        self._info = worker_info(engine, served_name(config), config.role, relay, self._embeddings)
        self._keys = own_keys(config)
        self._client = Client(FLEET, where.first(FLEET), unique_identity(self._name), self._keys)
        self._plans = PlanQueue()
        self._pulls: deque[tuple[int, Pull]] = deque()
        """Behind how many plans each of them may begin."""
        self._pulled: deque[Pulled] = deque()
        self._held = PageHashTable(kept)
        self._loader = AdapterLoader(engine.adapters)
        self._spool = WeightSpool(config.run_dir, self._info.model)
        self._updater = self._new_updater(engine)
        self._replies: deque[WorkerReply] = deque()
        self._naps: deque[WorkerCommand] = deque()
        """Commands to sleep, to wake up and to use other weights, for when nothing runs."""
        self._drained = self._forgotten = self._lending = False
        self._heart: Heartbeat | None = None
        self._greeting = self._new_greeting()

    def run(self) -> int:
        """Serve until the process should end. Returns its exit code.

        Raises:
            PlanError: the scheduler and this worker are out of step; a restart is needed.
        """
        self._relay.start()
        with self._client:
            try:
                while not self._life.over(self._idle):
                    pulse.beat()
                    self._client.follow(self._where.first(FLEET))
                    busy = self._plans or self._engine.in_flight
                    wait((self._client,), 0 if busy else self._patience())
                    self._listen()
                    self._speak()
                    if self._plans:
                        self._execute()
                    elif self._engine.in_flight:
                        self._finish()
                    else:
                        self._lending = self._engine.lend()
                        self._nap()
                self._engine.leave()
            finally:
                self._stop_heart()
                self._close_transfers()
                self._loader.close()
                self._updater.close()
        return 0

    def _patience(self) -> float:
        if self._engine.in_lockstep:
            return 0 if self._lending else _LOCKSTEP_SECONDS
        media = self._embeddings is not None and self._embeddings.busy
        busy = self._relay.busy or self._loader.busy or self._updater.busy or media
        return _TRANSFER_SECONDS if busy else _IDLE_SECONDS

    @property
    def _idle(self) -> bool:
        return not self._plans and self._engine.idle

    def _listen(self) -> None:
        if self._client.broke() and self._greeting.server is not None:
            self._forgotten = True
        for received in self._client.drain():
            message, known = received.message, self._greeting.server is not None
            if self._greeting.heard(message, time.monotonic()):
                self._joined()
            elif known and self._greeting.server is None:
                self._forgotten = True
            elif isinstance(message, Plan):
                self._take(message)
            elif isinstance(message, TruncatePlan):
                self._cut(message)
            elif isinstance(message, PageHashes):
                self._keep(message)
            elif isinstance(message, Grant | Revoke | Pull):
                self._transfer(message)
            elif isinstance(message, SetRole):
                self._assign(message)
            elif isinstance(message, WorkerCommand):
                self._command(message)
            elif isinstance(message, Drain):
                self._life.stop()

    def _assign(self, order: SetRole) -> None:
        """The scheduler has changed this worker's role: say so at every Hello from now on."""
        log.info("the role is %s now, it was %s", order.role, self._info.role)
        self._say(role=order.role)

    def _say(self, **changes: Any) -> None:
        """Say something else of this worker at every Hello."""
        self._info = msgspec.structs.replace(self._info, **changes)
        self._greeting.hello = msgspec.structs.replace(self._greeting.hello, worker=self._info)

    def _command(self, command: WorkerCommand) -> None:
        if command.epoch != self._greeting.hello.incarnation:
            return
        if isinstance(command.action, Sleep | WakeUp | SwitchWeights):
            self._naps.append(command)
        elif isinstance(command.action, UpdateWeights | LoadWeights | DropWeights):
            self._updater.submit(command)
        else:
            self._loader.submit(command)

    def _nap(self) -> None:
        """Sleep, wake up or use other weights if that was asked for and nothing runs; then join
        again as what this worker has become: of its pages nothing is left."""
        if not self._naps:
            return
        switches = isinstance(self._naps[0].action, SwitchWeights)
        if not (self._idle or (switches and not self._plans)):
            return
        command, before = self._naps.popleft(), (self._engine, self._info.weights)
        reason = self._changed(command.action)
        changed = (self._engine, self._info.weights) != before
        del before
        if isinstance(self._engine, SleepingEngine):
            self._engine.free()
        digest, adapters = self._info.weights.digest, self._info.adapters
        self._send(WorkerReply(command.epoch, command.id, reason, digest, adapters))
        if changed:
            self._held = PageHashTable(self._kept)
            self._join_again()

    def _changed(self, action: Action) -> str:
        """Returns why it cannot, or nothing."""
        if isinstance(action, Sleep):
            return self._fall_asleep(action.level)
        if isinstance(action, SwitchWeights):
            return self._switch(action.digest)
        self._wake_up()
        return ""

    def _switch(self, digest: bytes) -> str:
        """Use the weights that were loaded. Returns why it cannot, or nothing."""
        loaded = self._updater.take(digest)
        if loaded is None or isinstance(self._engine, SleepingEngine):
            return "These weights are not loaded here."
        version, model = loaded
        begin = time.monotonic()
        if self._kept is not None:
            self._kept.clear()
        del loaded
        with pulse.beating():
            self._engine.switch_to(model, version, self._config)
        self._loader.close()
        self._loader = AdapterLoader(self._engine.adapters)
        self._spool.use(version)
        self._say(weights=version, eos_ids=self._engine.resolved.eos_ids)
        log.info("weights are %s now, after %.2f s", version.label, time.monotonic() - begin)
        return ""

    def _new_updater(self, engine: Engine) -> WeightUpdater:
        blocker = engine.update_blocker
        return WeightUpdater(self._spool, engine.load_version, engine.try_out, blocker)

    def _fall_asleep(self, level: int) -> str:
        """Returns why it cannot, or nothing."""
        engine = self._engine
        if isinstance(engine, SleepingEngine):
            return ""
        if engine.sleep_blocker is not None:
            return engine.sleep_blocker
        log.info("going to sleep, level %d", level)
        self._close_transfers()
        self._loader.close()
        self._updater.close()
        self._relay, self._embeddings = NoTransfers(), None
        if isinstance(self._kept, PersistentCache):
            self._kept.give_back(engine.cache)
        self._kept = None
        self._engine = SleepingEngine(engine.sleep(level, self._config), engine.progress)
        self._loader = AdapterLoader(None)
        self._updater = WeightUpdater.without_engine(self._spool)
        self._say(asleep=level)
        return ""

    def _wake_up(self) -> None:
        if isinstance(self._engine, Engine):
            return
        begin = time.monotonic()
        with pulse.beating():
            self._engine = engine = self._engine.wake()
        self._kept = persistent_cache(engine, self._config)
        self._relay = relay = engine.relay(self._config, self._name)
        relay.start()
        self._loader = AdapterLoader(engine.adapters)
        self._updater = self._new_updater(engine)
        self._embeddings = embedding_puller(engine, self._config, self._name, relay)
        self._info = worker_info(engine, self._info.model, self._info.role, relay, self._embeddings)
        log.info("woke up in %.1f s", time.monotonic() - begin)

    def _take(self, plan: Plan) -> None:
        if plan.epoch != self._greeting.hello.incarnation:
            log.warning("dropped plan %d of epoch %d", plan.step, plan.epoch)
            return
        if len(self._plans) >= _MOST_PLANS:
            raise PlanError(
                f"{_MOST_PLANS} plans are waiting: the scheduler runs ahead of results."
            )
        self._plans.add(plan)

    def _cut(self, cut: TruncatePlan) -> None:
        if cut.epoch == self._greeting.hello.incarnation:
            self._plans.cut(cut.step)

    def _keep(self, kept: PageHashes) -> None:
        if kept.epoch != self._greeting.hello.incarnation:
            return
        try:
            self._held.update(kept)
        except ValueError as error:
            log.warning("the names of the pages are forgotten: %s", error)

    def _transfer(self, message: Grant | Revoke | Pull) -> None:
        """A plan that is here already may still write to pages that have changed hands since: a
        pull waits for those."""
        if message.epoch != self._greeting.hello.incarnation:
            return
        if isinstance(message, Pull) and message.digest:
            self._pull_embeddings(message)
        elif isinstance(message, Pull):
            self._pulls.append((self._plans.ended + len(self._plans), message))
        else:
            self._relay.take(message)

    def _pull_embeddings(self, pull: Pull) -> None:
        if self._embeddings is not None:
            self._embeddings.take(pull)
            return
        reason = "this worker takes no embeddings"
        self._pulled.append(Pulled(pull.epoch, pull.id, reason, digest=pull.digest))

    def _adopt_embeddings(self) -> None:
        """Embeddings that have arrived are in the cache before the scheduler hears of them."""
        for pulled, embeddings in self._embeddings.finished() if self._embeddings else ():
            if not pulled.reason and self._engine.encoder is not None:
                self._engine.encoder.adopt(pulled.digest, embeddings)
            self._pulled.append(pulled)

    def _close_transfers(self) -> None:
        if self._embeddings is not None:
            self._embeddings.close()
        self._relay.close()

    def _speak(self) -> None:
        while self._pulls and self._pulls[0][0] <= self._plans.ended:
            self._relay.take(self._pulls.popleft()[1])
        self._pulled.extend(self._relay.finished())
        self._adopt_embeddings()
        while self._pulled and self._send(self._pulled[0]):
            self._pulled.popleft()
        for reply in self._loader.finished():
            self._say(adapters=reply.adapters)
            self._replies.append(reply)
        for reply in self._updater.finished():
            self._replies.append(msgspec.structs.replace(reply, adapters=self._info.adapters))
        while self._replies and self._send(self._replies[0]):
            self._replies.popleft()
        stranger = self._heart is not None and self._heart.stranger.is_set()
        if stranger or self._forgotten:
            self._left()
        if self._greeting.server is None:
            self._send(self._greeting.due(time.monotonic()))
        elif self._life.draining and not self._drained:
            left = (self._life.draining_until or 0.0) - time.monotonic()
            self._drained = self._send(Drain(max(left, 0.0)))

    def _joined(self) -> None:
        """The scheduler has answered this epoch's Hello: from now on, beats tell how it fares."""
        log.info("joined the scheduler as %s", self._name)
        self._stop_heart()
        self._heart = Heartbeat(
            FLEET, self._where, self._greeting.hello, self._progress, self._keys
        )
        self._heart.start()

    def _left(self) -> None:
        """The scheduler does not know this worker, or messages may be lost: forget all sequences
        and send Hello again, with the contents of the pages."""
        log.warning("lost touch with the scheduler: dropping all sequences, joining again")
        self._join_again()

    def _join_again(self) -> None:
        """Begin a new epoch with no sequence."""
        self._stop_heart()
        self._plans.clear()
        self._relay.reset()
        if self._embeddings is not None:
            self._embeddings.reset()
        self._pulls.clear()
        self._pulled.clear()
        self._loader.reset()
        self._updater.reset()
        self._replies.clear()
        self._naps.clear()
        self._engine.reset()
        self._drained = self._forgotten = False
        self._greeting = self._new_greeting()

    def _execute(self) -> None:
        """Run or launch one step. What has come meanwhile is heard before its result is sent, so
        that the result can say whether a plan was cut: the next one is then here before it
        ends."""
        results = self._engine.submit(*self._plans.first)
        self._plans.advance()
        if self._plans:
            self._listen()
        self._answer(results)

    def _finish(self) -> None:
        """No plan has come to launch behind the step in flight: read that once it has ended."""
        if self._engine.ready:
            self._answer(self._engine.finish())
        else:
            time.sleep(_POLL_SECONDS)

    def _answer(self, results: list[Result]) -> None:
        for result in results:
            told = self._plans.tell(result)
            if not self._client.send(told, Envelope(epoch=result.epoch)):
                log.warning("the result of step %d found no scheduler", result.step)

    def _progress(self) -> tuple[int, bool]:
        return self._engine.progress, bool(self._plans) or self._engine.in_flight

    def _send(self, message: Message | None) -> bool:
        return message is not None and self._client.send(message)

    def _new_greeting(self) -> Greeting:
        who = ("worker", self._name, incarnation(), __version__)
        return Greeting(Hello(*who, worker=self._info, held=self._held.held()))

    def _stop_heart(self) -> None:
        if self._heart is not None:
            self._heart.stop()
            self._heart = None


def embedding_puller(
    engine: Engine, config: Config, name: str, relay: KVTransferManager | LeaderKVTransfer
) -> EmbeddingPuller | None:
    """What takes the embeddings of encode workers; None for a model that sees nothing."""
    if engine.encoder is None:
        return None
    tower, here, keys = engine.encoder.tower, host(config), own_keys(config)
    return EmbeddingPuller(tower.width, tower.dtype, name, relay.transports, here, keys)


def worker_info(
    engine: Engine,
    model: str,
    role: str,
    relay: KVTransferManager | LeaderKVTransfer,
    embeddings: EmbeddingPuller | None = None,
) -> WorkerInfo:
    """What this worker tells about itself in its Hello."""
    resolved = engine.resolved
    speculative = resolved.speculative
    return WorkerInfo(
        model=model,
        num_pages=resolved.num_pages,
        page_size=resolved.page_size,
        max_num_seqs=resolved.max_num_seqs,
        max_num_batched_tokens=resolved.max_num_batched_tokens,
        max_model_len=resolved.max_model_len,
        vocab_size=resolved.vocab_size,
        device=resolved.build.device.type,
        dtype=resolved.dtype_name,
        weight_bytes=resolved.weight_bytes,
        kv_bytes=resolved.kv_bytes,
        eos_ids=resolved.eos_ids,
        pooling=resolved.pooling,
        host_pages=resolved.host_pages,
        windows=resolved.groups.windows,
        role=role,
        kv_address=relay.address,
        kv_layout=relay.layout,
        expert_group=engine.team,
        adapters=engine.adapters.infos if engine.adapters else (),
        max_loras=engine.max_loras,
        max_cpu_loras=engine.adapters.capacity if engine.adapters else 0,
        num_speculative_tokens=speculative.num_speculative_tokens if speculative else 0,
        process=process_id(os.getpid()),
        supervised=pulse.attached,
        encoder_layout=embeddings.layout if embeddings is not None else "",
        weights=engine.version,
    )


def await_room(config: Config) -> None:
    """Wait, in a standby, until memory has room for what would be there twice, or it is called."""
    shared, said = Segments(config.run_dir), False
    while standby.held() and not has_room(fetch(config), shared.held_bytes() or 0):
        if not said:
            log.info("memory has no room for the weights beside those of the workers: waiting")
            said = True
        standby.wait(_ROOM_SECONDS)


def in_place_of(arguments: Sequence[str], config: Config) -> Config:
    """The settings of a standby that takes the place of a worker with these arguments: its name and
    role, which the engine does not know."""
    if not arguments:
        return config
    replaced = resolve(Config.load(arguments))
    return config.model_copy(update={"name": replaced.name, "role": replaced.role})


def with_pages_of_others(config: Config) -> Config:
    """The settings of a standby: it can take over the pages of a worker if it has as many."""
    pages = Segments(config.run_dir).leased_pages() if standby.held() else 0
    return config.model_copy(update={"num_gpu_blocks_override": pages}) if pages else config


def persistent_cache(engine: Engine, config: Config) -> PersistentCache | None:
    """The pages of this engine in memory that outlives it, with what the last worker of its name
    left there; None where they go with it: on a GPU, on several ranks, or without a supervisor."""
    segments, resolved = Segments(config.run_dir), engine.resolved
    alone = resolved.ranks == 1 and not engine.in_lockstep
    if not (config.keep_kv_cache and alone) or segments.held_bytes() is None:
        return None
    of = (config.model, config.quantization, resolved.dtype_name, resolved.build.codes)
    shape = (resolved.build.layout, resolved.page_size, resolved.num_pages, resolved.groups)
    return PersistentCache.lease(segments, config.name or "worker", f"{of} {shape}", engine.cache)


def serve(config: Config, life: Lifecycle) -> int:
    """Build the engine, then serve with it. A standby builds it before it is called, where memory
    has room for a second one."""
    config = resolve(config)
    if config.role == "encode":
        return encode(config, life)
    await_room(config)
    config = with_pages_of_others(config)
    engine = current_engine(config)
    if standby.held():
        log.info("loaded; waiting to take the place of a worker that dies")
    engine = follow_versions(config, engine)
    config = in_place_of(standby.wait(), config)
    with contextlib.closing(engine), contextlib.closing(directory(config)) as where:
        return Service(engine, config, where, life, persistent_cache(engine, config)).run()


def current_engine(config: Config) -> Engine:
    """An engine with the weights that the workers of this host use."""
    version = WeightSpool(config.run_dir, served_name(config)).version()
    if version is not None:
        try:
            for source in version.sources:
                check(source)
            return Engine.build(config, version)
        except BatonError as error:
            log.error("weights %s are not loaded: %s", version.label, error.message)
    return Engine.build(config)


def follow_versions(config: Config, engine: Engine) -> Engine:
    """In a standby: return what is called, with the weights that the workers use by then."""
    spool = WeightSpool(config.run_dir, served_name(config))
    tried = spool.version()
    while standby.held():
        standby.wait(_ROOM_SECONDS)
        if standby.held() and (version := spool.version()) != tried:
            tried = version
            engine.close()
            del engine
            gc.unfreeze()
            gc.collect()
            engine = current_engine(config)
    return engine
