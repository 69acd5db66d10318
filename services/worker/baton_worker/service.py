"""The worker as a service: register with the scheduler, run its plans in order, send results."""

from __future__ import annotations

import contextlib
import time
from collections import deque

import msgspec

from baton.checkpoint.hub import served_name
from baton.kv.page_hashes import HashStore, PageHashTable
from baton.logs import logger
from baton.net.curve import own_keys
from baton.net.discovery import Directory, directory
from baton.process import standby
from baton.process.lifecycle import Lifecycle, default_name
from baton.process.segments import Segments
from baton.process.watchdog import pulse
from baton.protocol import (
    KV_BEFORE_WEIGHTS,
    Action,
    DropWeights,
    Envelope,
    Grant,
    InitWeightTransfer,
    LoadWeights,
    PageHashes,
    Plan,
    Pull,
    Pulled,
    Result,
    Revoke,
    SetRole,
    Sleep,
    StartProfile,
    StopProfile,
    SwitchWeights,
    TruncatePlan,
    UpdateWeights,
    WakeTag,
    WakeUp,
    WorkerCommand,
    WorkerReply,
)
from baton_worker.config import Config
from baton_worker.encode_worker.service import serve as encode
from baton_worker.engine.batch.plan_columns import PlanError
from baton_worker.engine.engine import Engine
from baton_worker.engine.plan_queue import PlanQueue
from baton_worker.engine.sleeping_engine import NoTransfers, SleepingEngine
from baton_worker.executor.kv_transfer import LeaderKVTransfer
from baton_worker.kv_cache.persistent_cache import PersistentCache
from baton_worker.kv_transfer.embedding_puller import EmbeddingPuller
from baton_worker.kv_transfer.manager import KVTransferManager, host
from baton_worker.kv_transfer.vllm_config import resolve
from baton_worker.lora.loader import AdapterLoader
from baton_worker.platform import profiler_config
from baton_worker.platform.cpu_threads import set_niceness
from baton_worker.platform.download_signal import DownloadSignal
from baton_worker.platform.profiler import Profiler
from baton_worker.registration import Registration
from baton_worker.standby import (
    await_kept_weights,
    await_room,
    in_place_of,
    load_engine,
    with_pages_of_others,
)
from baton_worker.weight_transfer.spool import WeightSpool
from baton_worker.weight_transfer.updater import WeightUpdater
from baton_worker.worker_info import worker_info

_IDLE_SECONDS = 0.05
"""Longest sleep without a message: how late a signal or a lost registration is noticed."""
_TRANSFER_SECONDS = 0.002
"""As above while KV is in transit: bounds the delay before its arrival is noticed."""
_LOCKSTEP_SECONDS = 0.005
"""The same where other workers wait for this one before they take a step."""
_PREFILL_NICENESS = 5
"""Of a worker that prefills on a CPU: streams of decode workers on the same cores go first, and it
still gets a quarter of a core that they would fill."""
_POLL_SECONDS = 5e-5
"""How often a step that another stage of a pipeline runs is looked at while no plan is here: ZeroMQ
waits for milliseconds."""
_MOST_PLANS = 64
"""Plans that may wait. A scheduler keeps a few in flight; more is a fault on its side."""

log = logger(__name__)


class Service:
    """One engine, one scheduler.

    Each registration is an epoch of its own: when the scheduler has dropped this worker (it
    restarted, or declared the worker lost), the batch is dropped and a new incarnation sends Hello.
    Plans of older epochs are dropped.
    """

    def __init__(
        self,
        engine: Engine,
        config: Config,
        where: Directory,
        life: Lifecycle,
        store: HashStore | None = None,
    ) -> None:
        """`store` has the hashes of the engine's pages."""
        self._engine: Engine | SleepingEngine = engine
        self._life, self._config = life, config
        self._store = store
        self._name = config.name or default_name("worker")
        self._kv_transfer: KVTransferManager | LeaderKVTransfer | NoTransfers
        self._kv_transfer = kv_transfer = engine.kv_transfer(config, self._name)
        self._embeddings = embedding_puller(engine, config, self._name, kv_transfer)
        self._plans = PlanQueue()
        self._pulls: deque[tuple[int, Pull]] = deque()
        """Behind how many plans each of them may begin."""
        self._pulled: deque[Pulled] = deque()
        self._page_hashes = PageHashTable(store)
        self._loader = AdapterLoader(engine.adapters)
        self._spool = WeightSpool(config.run_dir, served_name(config))
        self._updater = self._new_updater(engine)
        self._profiler = Profiler(profiler_config.parse(config.profiler_config), self._name)
        self._replies: deque[WorkerReply] = deque()
        self._deferred: deque[WorkerCommand] = deque()
        """Commands to sleep, to wake up and to use other weights, for when nothing runs."""
        self._in_dummy_step, self._signal = False, DownloadSignal()
        info = worker_info(engine, served_name(config), config.role, kv_transfer, self._embeddings)
        self._scheduler = Registration(
            config, self._name, where, life, info, self._progress, lambda: self._page_hashes.held()
        )

    def run(self) -> int:
        """Serve until the process should end. Returns its exit code.

        Raises:
            PlanError: the scheduler and this worker are out of step; a restart is needed.
        """
        self._kv_transfer.start()
        with self._scheduler:
            try:
                while not self._life.over(self._idle):
                    pulse.beat()
                    busy = self._plans or self._engine.in_flight
                    self._scheduler.wait(0 if busy else self._wait_seconds())
                    self._listen()
                    self._send_due()
                    if self._plans:
                        self._execute()
                    elif self._engine.in_flight:
                        self._finish()
                    else:
                        self._in_dummy_step = self._engine.run_dummy_step()
                        self._run_deferred()
                self._engine.leave()
                self._drop_pages()
            finally:
                self._scheduler.stop_beats()
                self._close_transfers()
                self._loader.close()
                self._updater.close()
        return 0

    def _drop_pages(self) -> None:
        """An orderly end: no worker of this name may follow, and its pages take memory of a GPU."""
        if isinstance(self._engine, Engine) and self._engine.kept_pages is not None:
            self._engine.kept_pages.drop()

    def _wait_seconds(self) -> float:
        if self._engine.in_lockstep:
            return 0 if self._in_dummy_step else _LOCKSTEP_SECONDS
        media = self._embeddings is not None and self._embeddings.busy
        busy = self._kv_transfer.busy or self._loader.busy or self._updater.busy or media
        return _TRANSFER_SECONDS if busy else _IDLE_SECONDS

    @property
    def _idle(self) -> bool:
        return not self._plans and self._engine.idle

    def _listen(self) -> None:
        for message in self._scheduler.messages():
            if isinstance(message, Plan):
                self._add_plan(message)
            elif isinstance(message, TruncatePlan):
                self._truncate_plan(message)
            elif isinstance(message, PageHashes):
                self._update_hashes(message)
            elif isinstance(message, Grant | Revoke | Pull):
                self._transfer_kv(message)
            elif isinstance(message, SetRole):
                self._set_role(message)
            elif isinstance(message, WorkerCommand):
                self._command(message)

    def _set_role(self, order: SetRole) -> None:
        """The scheduler has changed this worker's role: say so at every Hello from now on."""
        log.info("the role is %s now, it was %s", order.role, self._scheduler.info.role)
        self._scheduler.update_info(role=order.role)

    def _command(self, command: WorkerCommand) -> None:
        if command.epoch != self._scheduler.epoch:
            return
        if isinstance(command.action, Sleep | WakeUp | SwitchWeights):
            self._deferred.append(command)
        elif isinstance(command.action, StartProfile | StopProfile):
            self._profile(command)
        elif isinstance(
            command.action, InitWeightTransfer | UpdateWeights | LoadWeights | DropWeights
        ):
            self._updater.submit(command)
        else:
            self._loader.submit(command)

    def _profile(self, command: WorkerCommand) -> None:
        starts = isinstance(command.action, StartProfile)
        reason = self._profiler.start() if starts else self._profiler.stop()
        adapters = self._scheduler.info.adapters
        self._replies.append(WorkerReply(command.epoch, command.id, reason, adapters=adapters))

    def _run_deferred(self) -> None:
        """Sleep, wake up or switch weights if that was requested and nothing runs; then register
        again, without pages."""
        if not self._deferred:
            return
        switches = isinstance(self._deferred[0].action, SwitchWeights)
        if not (self._idle or (switches and not self._plans)):
            return
        command, before = self._deferred.popleft(), (self._engine, self._scheduler.info.weights)
        reason = self._change_engine(command.action)
        changed = (self._engine, self._scheduler.info.weights) != before
        del before
        if isinstance(self._engine, SleepingEngine):
            self._engine.free()
        digest, adapters = self._scheduler.info.weights.digest, self._scheduler.info.adapters
        self._scheduler.send(WorkerReply(command.epoch, command.id, reason, digest, adapters))
        if changed:
            self._page_hashes = PageHashTable(self._store)
            self._join_again()

    def _change_engine(self, action: Action) -> str:
        """Returns why it cannot, or nothing."""
        if isinstance(action, Sleep):
            return self._sleep(action.level)
        if isinstance(action, SwitchWeights):
            return self._switch(action.digest)
        if isinstance(action, WakeUp):
            return self._wake(action.tags)
        return f"A worker knows no {type(action).__name__}."

    def _wake(self, tags: tuple[WakeTag, ...]) -> str:
        """Wake what the tags name, or everything. Returns why it cannot, or nothing."""
        engine = self._engine
        if not isinstance(engine, SleepingEngine):
            return ""
        if tags == ("weights",):
            with pulse.beating():
                engine.load()
            self._scheduler.update_info(asleep=engine.level)
            return ""
        if tags == ("kv_cache",) and engine.level > 1:
            return KV_BEFORE_WEIGHTS
        self._wake_up(engine)
        return ""

    def _switch(self, digest: bytes) -> str:
        """Use the weights that were loaded. Returns why it cannot, or nothing."""
        loaded = self._updater.take(digest)
        if loaded is None or isinstance(self._engine, SleepingEngine):
            return "These weights are not loaded here."
        version, model = loaded
        begin = time.monotonic()
        if self._store is not None:
            self._store.clear()
        del loaded
        with pulse.beating():
            self._engine.switch_to(model, version, self._config)
        self._loader.close()
        self._loader = AdapterLoader(self._engine.adapters)
        self._spool.use(version)
        self._scheduler.update_info(weights=version, eos_ids=self._engine.resolved.eos_ids)
        log.info("weights are %s now, after %.2f s", version.label, time.monotonic() - begin)
        return ""

    def _new_updater(self, engine: Engine) -> WeightUpdater:
        blocker = engine.update_blocker
        steps = (engine.load_version, engine.try_out, engine.drop_version)
        return WeightUpdater(self._spool, *steps, blocker)

    def _sleep(self, level: int) -> str:
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
        self._kv_transfer, self._embeddings = NoTransfers(), None
        if isinstance(self._store, PersistentCache):
            self._store.give_back(engine.cache)
        self._store = None
        self._engine = SleepingEngine(level, engine.sleep(level, self._config), engine.progress)
        self._loader = AdapterLoader(None)
        self._updater = WeightUpdater.without_engine(self._spool)
        self._scheduler.update_info(asleep=level)
        return ""

    def _wake_up(self, sleeping: SleepingEngine) -> None:
        begin = time.monotonic()
        with pulse.beating():
            self._engine = engine = sleeping.wake()
        self._store = persistent_cache(engine, self._config)
        self._kv_transfer = kv_transfer = engine.kv_transfer(self._config, self._name)
        kv_transfer.start()
        self._loader = AdapterLoader(engine.adapters)
        self._updater = self._new_updater(engine)
        self._embeddings = embedding_puller(engine, self._config, self._name, kv_transfer)
        self._scheduler.info = worker_info(
            engine,
            self._scheduler.info.model,
            self._scheduler.info.role,
            kv_transfer,
            self._embeddings,
        )
        log.info("woke up in %.1f s", time.monotonic() - begin)

    def _add_plan(self, plan: Plan) -> None:
        if plan.epoch != self._scheduler.epoch:
            log.warning("dropped plan %d of epoch %d", plan.step, plan.epoch)
            return
        if len(self._plans) >= _MOST_PLANS:
            raise PlanError(
                f"{_MOST_PLANS} plans are waiting: the scheduler runs ahead of results."
            )
        self._plans.add(plan)

    def _truncate_plan(self, order: TruncatePlan) -> None:
        if order.epoch == self._scheduler.epoch:
            self._plans.truncate(order.step)

    def _update_hashes(self, hashes: PageHashes) -> None:
        if hashes.epoch != self._scheduler.epoch:
            return
        try:
            self._page_hashes.update(hashes)
        except ValueError as error:
            log.warning("the names of the pages are forgotten: %s", error)

    def _transfer_kv(self, message: Grant | Revoke | Pull) -> None:
        """A plan that is here already may still write to pages that have changed hands since: a
        pull waits for those."""
        if message.epoch != self._scheduler.epoch:
            return
        if isinstance(message, Pull) and message.digest:
            self._pull_embeddings(message)
        elif isinstance(message, Pull):
            self._pulls.append((self._plans.ended + len(self._plans), message))
        else:
            self._kv_transfer.take(message)

    def _pull_embeddings(self, pull: Pull) -> None:
        if self._embeddings is not None:
            self._embeddings.take(pull)
            return
        reason = "this worker takes no embeddings"
        self._pulled.append(Pulled(pull.epoch, pull.id, reason, digest=pull.digest))

    def _adopt_embeddings(self) -> None:
        """Put embeddings that have arrived into the cache before they are reported."""
        for pulled, embeddings in self._embeddings.finished() if self._embeddings else ():
            if not pulled.reason and self._engine.encoder is not None:
                self._engine.encoder.adopt(pulled.digest, embeddings)
            self._pulled.append(pulled)

    def _close_transfers(self) -> None:
        if self._embeddings is not None:
            self._embeddings.close()
        self._kv_transfer.close()

    def _send_due(self) -> None:
        while self._pulls and self._pulls[0][0] <= self._plans.ended:
            self._kv_transfer.take(self._pulls.popleft()[1])
        self._pulled.extend(self._kv_transfer.finished())
        self._adopt_embeddings()
        while self._pulled and self._scheduler.send(self._pulled[0]):
            self._pulled.popleft()
        for reply in self._loader.finished():
            self._scheduler.update_info(adapters=reply.adapters)
            self._replies.append(reply)
        for reply in self._updater.finished():
            self._replies.append(
                msgspec.structs.replace(reply, adapters=self._scheduler.info.adapters)
            )
        while self._replies and self._scheduler.send(self._replies[0]):
            self._replies.popleft()
        if self._scheduler.lost:
            self._rejoin()
        self._scheduler.send_due()

    def _rejoin(self) -> None:
        """The scheduler has dropped this worker, or messages may be lost: drop all sequences and
        send Hello again, with the contents of the pages."""
        log.warning("lost touch with the scheduler: dropping all sequences, joining again")
        self._join_again()

    def _join_again(self) -> None:
        """Begin a new epoch with no sequence."""
        self._scheduler.stop_beats()
        self._plans.clear()
        self._kv_transfer.reset()
        if self._embeddings is not None:
            self._embeddings.reset()
        self._pulls.clear()
        self._pulled.clear()
        self._loader.reset()
        self._updater.reset()
        self._replies.clear()
        self._deferred.clear()
        self._engine.reset()
        self._scheduler.renew()

    def _execute(self) -> None:
        """Run or launch one step. What has come meanwhile is heard before its result is sent, so
        that the result can say whether a plan was cut: the next one is then here before it
        ends."""
        results = self._engine.submit(*self._plans.first)
        self._plans.advance()
        self._profiler.step()
        if self._plans:
            self._listen()
        self._answer(results)

    def _finish(self) -> None:
        """No plan has come to launch behind the step in flight: read that once it has ended."""
        if self._engine.ready:
            self._answer(self._engine.finish())
        elif (unread := self._engine.unread) is None:
            time.sleep(_POLL_SECONDS)
        elif (signal := self._signal.of(unread)) is not None:
            self._scheduler.wait(_IDLE_SECONDS, signal)

    def _answer(self, results: list[Result]) -> None:
        for result in results:
            reply = self._plans.with_truncation(result)
            if not self._scheduler.send(reply, Envelope(epoch=result.epoch)):
                log.warning("the result of step %d found no scheduler", result.step)

    def _progress(self) -> tuple[int, bool]:
        return self._engine.progress + self._kv_transfer.progress, bool(
            self._plans
        ) or self._engine.in_flight


def embedding_puller(
    engine: Engine, config: Config, name: str, kv_transfer: KVTransferManager | LeaderKVTransfer
) -> EmbeddingPuller | None:
    """Receives the embeddings of encode workers; None for a model without an encoder."""
    if engine.encoder is None:
        return None
    tower, here, keys = engine.encoder.tower, host(config), own_keys(config)
    return EmbeddingPuller(tower.width, tower.dtype, name, kv_transfer.transports, here, keys)


def persistent_cache(engine: Engine, config: Config) -> PersistentCache | None:
    """The pages of this engine in memory that outlives it, with what the last worker of its name
    left there; None where they go with it: on several ranks of CPUs, on a GPU without a keeper, or
    without a supervisor."""
    segments, resolved = Segments(config.run_dir), engine.resolved
    if not config.keep_kv_cache or segments.held_bytes() is None:
        return None
    rounding = (config.quantization, config.int8_activations)
    weights = (config.model, resolved.checkpoint_files.hex(), *rounding)
    of = (*weights, resolved.dtype_name, resolved.build.codes)
    shape = (resolved.build.layout, resolved.page_size, resolved.num_pages, resolved.groups)
    lease = (segments, config.name or "worker", f"{of} {shape}", engine.cache)
    if engine.kept_pages is not None:
        return PersistentCache.beside(*lease, engine.kept_pages)
    alone = resolved.ranks == 1 and not engine.in_lockstep
    return PersistentCache.lease(*lease) if alone else None


def serve(config: Config, life: Lifecycle) -> int:
    """Build the engine, then serve with it. A standby builds it before it is called, where memory
    has room for a second one."""
    config = resolve(config)
    if config.role == "encode":
        return encode(config, life)
    await_room(config)
    await_kept_weights(config)
    config = with_pages_of_others(config)
    engine = load_engine(config)
    config = in_place_of(standby.wait(), config)
    if config.role == "prefill" and engine.resolved.build.device.type == "cpu":
        set_niceness(_PREFILL_NICENESS)
    with contextlib.closing(engine), contextlib.closing(directory(config)) as where:
        return Service(engine, config, where, life, persistent_cache(engine, config)).run()
