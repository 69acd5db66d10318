"""Flags of `baton serve`, and what they mean for each process."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from baton.errors import SettingsError
from baton.settings import SERVICES, Settings, config_classes
from baton_ops.supervisor.child import InactivityLimits
from baton_ops.supervisor.options import (
    CHILD_MAIN,
    Serve,
    commands,
    forked_workers,
    group,
    inactivity_limits,
    run_directory,
    serve_config,
    spares,
    variables,
    worker_command,
    worker_spare,
    workers,
)

RUN = Path("/run/baton")


def load(*argv: str) -> Serve:
    return serve_config().load(argv)


def test_every_setting_of_every_service_is_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load("--help-all")
    text = capsys.readouterr().out
    for service, cls in config_classes().items():
        for name in set(cls.model_fields) - set(Settings.model_fields):
            kebab = name.replace("_", "-")
            assert f"  --{kebab}" in text or f"  --{service}.{kebab}" in text
    assert "[MODEL]" in text


def test_flags_become_variables_of_the_services() -> None:
    config = load("some/model", "--worker.max-num-seqs", "8", "--no-gateway.metrics", "--port", "0")
    given = variables(config)
    assert given == {
        "BATON_MODEL": "some/model",
        "BATON_WORKER_MAX_NUM_SEQS": "8",
        "BATON_GATEWAY_METRICS": "False",
        "BATON_GATEWAY_PORT": "0",
    }


def test_a_short_flag_and_the_one_it_is_short_for_may_not_disagree() -> None:
    assert variables(load("--port", "1", "--gateway.port", "1"))["BATON_GATEWAY_PORT"] == "1"
    with pytest.raises(SettingsError, match=r"--port 0 contradicts --gateway\.port 9:"):
        variables(load("--port", "0", "--gateway.port", "9"))


@pytest.mark.parametrize("flag", ["--tensor-parallel-size", "--tensor-parallel-size"])
def test_ranks_have_a_short_flag_and_the_one_of_vllm(flag: str) -> None:
    config = serve_config().load(["m.gguf", flag, "2"])
    assert variables(config)["BATON_WORKER_TENSOR_PARALLEL_SIZE"] == "2"
    assert "BATON_WORKER_TENSOR_PARALLEL_SIZE" not in variables(serve_config().load(["m.gguf"]))


@pytest.mark.row("F14.10")
@pytest.mark.parametrize(
    "flag", ["--decode-context-parallel-size", "--decode-context-parallel-size"]
)
def test_ranks_that_share_keys_have_a_short_flag_and_the_one_of_vllm(flag: str) -> None:
    config = serve_config().load(["m.gguf", "--tensor-parallel-size", "2", flag, "2"])
    assert variables(config)["BATON_WORKER_DECODE_CONTEXT_PARALLEL_SIZE"] == "2"
    given = variables(serve_config().load(["m.gguf"]))
    assert "BATON_WORKER_DECODE_CONTEXT_PARALLEL_SIZE" not in given


def test_a_service_reads_back_what_was_handed_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    given = variables(load("--mm-preprocess.bind", "tcp://127.0.0.1:1", "--no-gateway.metrics"))
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    classes = config_classes()
    assert getattr(classes["mm-preprocess"].load(), "bind") == "tcp://127.0.0.1:1"  # noqa: B009
    assert getattr(classes["gateway"].load(), "metrics") is False  # noqa: B009


def test_the_environment_reaches_the_services_untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_WORKER_MAX_NUM_SEQS", "16")
    monkeypatch.setenv("BATON_LOG_LEVEL", "debug")
    assert variables(load()) == {"BATON_LOG_LEVEL": "debug"}


def test_a_bad_value_of_a_service_is_refused_by_its_flag() -> None:
    with pytest.raises(
        SettingsError, match=r"--worker\.max-num-seqs: .*greater than or equal to 1"
    ):
        load("--worker.max-num-seqs", "0")
    with pytest.raises(SettingsError, match=r"--decode-workers: .*less than or equal to 1024"):
        load("--decode-workers", "5000")


def test_an_unknown_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_WORKER_MAX_NUM_SEQ", "16")
    with pytest.raises(SettingsError, match="Did you mean BATON_WORKER_MAX_NUM_SEQS"):
        load()


def test_the_run_directory_is_private_short_and_removed() -> None:
    with run_directory(load()) as one, run_directory(load()) as other:
        assert one != other
        assert stat.S_IMODE(one.stat().st_mode) == 0o700
    assert not one.exists()


def test_a_given_run_directory_stays(tmp_path: Path) -> None:
    with run_directory(load("--run-dir", str(tmp_path / "run"))) as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert folder.is_dir()


def test_one_command_per_service() -> None:
    assert set(commands(load(), RUN)) == set(SERVICES)


def test_each_of_several_gateways_and_tokenizers_has_a_spare_that_starts_as_it_does() -> None:
    config = load("--gateways", "2", "--tokenizers", "2")
    started, kept = commands(config, RUN), spares(config, RUN)
    several = {"gateway-1", "gateway-2", "tokenizer-1", "tokenizer-2"}
    assert several | {"scheduler"} == set(kept) < set(started)
    for name, command in kept.items():
        assert [part for part in command if part != "--spare"] == started[name]
    assert set(spares(load(), RUN)) == {"gateway", "tokenizer", "scheduler"}
    assert spares(load("--no-spares"), RUN) == {}


def test_a_gpu_has_a_process_that_holds_its_memory_and_its_workers_have_spares(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("baton.process.nvidia.count", lambda: 2)
    config = load("--prefill-workers", "1", "--decode-workers", "1", "--encode-workers", "1")
    started, kept = commands(config, RUN), spares(config, RUN)
    assert started["gpu-memory-1"][-3:] == ["device-keeper", "--gpu", "1"]
    assert {"gpu-memory-0", "gpu-memory-1"} < started.keys()
    assert kept.keys() == {"gateway", "tokenizer", "scheduler", "prefill-1", "decode-1"}
    for name, command in kept.items():
        assert [part for part in command if part != "--spare"] == started[name]
    assert worker_spare(config, "decode-2", "decode", 3) == [
        *commands(config, RUN)["gateway"][: len(CHILD_MAIN)],
        "--spare",
        *worker_command(config, "decode-2", "decode", 3)[len(CHILD_MAIN) :],
    ], "that of one which is added"
    assert worker_spare(config, "encode-2", "encode", 3) is None
    on_cpu = ("--worker.device", "cpu")
    assert not any("gpu-memory" in name for name in commands(load(*on_cpu), RUN))
    assert set(spares(load(*on_cpu), RUN)) == {"gateway", "tokenizer", "scheduler"}


@pytest.mark.parametrize("gpus", [0, 2])
def test_workers_of_several_processes_have_spares(
    monkeypatch: pytest.MonkeyPatch, gpus: int
) -> None:
    """Which cannot be forked, on GPUs and on CPUs."""
    monkeypatch.setattr("baton.process.nvidia.count", lambda: gpus)
    for flags, names in (
        (("--tensor-parallel-size", "2"), {"worker"}),
        (("--data-parallel-size", "2", "--enable-expert-parallel"), {"worker-1", "worker-2"}),
    ):
        config = load(*flags)
        started, kept = commands(config, RUN), spares(config, RUN)
        assert kept.keys() == names | {"gateway", "tokenizer", "scheduler"}
        for name in names:
            assert [part for part in kept[name] if part != "--spare"] == started[name]
        keepers = {name for name in started if name.startswith("gpu-memory")}
        assert len(keepers) == gpus and not forked_workers(config)
        assert spares(load(*flags, "--no-spares"), RUN) == {}


def test_workers_on_a_cpu_are_forked_from_one_that_starts_as_they_do_but_for_name_and_role(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("baton.process.nvidia.count", lambda: 0)
    config = load("--prefill-workers", "1", "--decode-workers", "2")
    [forked] = forked_workers(config)
    assert set(forked.services) == {"prefill-1", "decode-1", "decode-2"}
    assert set(forked.kinds) == {"worker", "prefill", "decode"}, "those of `baton fleet scale` too"
    started = commands(config, RUN)["decode-1"]
    named = ["--name", "decode-1", "--role", "decode"]
    assert [part for part in forked.command if part != "--fork-server"] == [
        part for part in started if part not in named
    ]
    encoders = forked_workers(load("--workers", "2", "--encode-workers", "1"))[1]
    assert (list(encoders.services), list(encoders.kinds)) == (["encode-1"], ["encode"])
    assert encoders.command[-6:-4] == ["--role", "encode"]
    assert forked_workers(load("--no-fork-workers")) == []
    refused = {
        "the processes of one worker": ("--tensor-parallel-size", "2"),
        "share experts": ("--data-parallel-size", "2", "--enable-expert-parallel"),
    }
    for words, flags in refused.items():
        assert forked_workers(load(*flags)) == []
        with pytest.raises(SettingsError, match=words):
            forked_workers(load("--fork-workers", *flags))
    monkeypatch.setattr("baton.process.nvidia.count", lambda: 1)
    assert forked_workers(load()) == []
    with pytest.raises(SettingsError, match="has initialised a GPU cannot be forked"):
        forked_workers(load("--fork-workers"))
    assert forked_workers(load("--worker.device", "cpu")) != []


def test_no_process_may_do_nothing_for_ever_and_workers_may_for_longer() -> None:
    names = ("stopped-process", "hung-process", "stopped-worker", "hung-worker")
    seconds = dict.fromkeys(names, "0") | {"stopped-process": "0.7", "hung-worker": "20"}
    flags = [part for name, value in seconds.items() for part in (f"--{name}-seconds", value)]
    config = load("--gateways", "2", *flags)
    limits = inactivity_limits(config)
    assert set(limits) == set(commands(config, RUN))
    assert limits.pop("worker") == InactivityLimits(hung=20.0)
    assert set(limits.values()) == {InactivityLimits(stopped=0.7)}
    usual = inactivity_limits(load())
    assert usual["worker"] == InactivityLimits(stopped=10.0, hung=120.0)
    assert usual["gateway"] == InactivityLimits(stopped=0.4, hung=10.0)


@pytest.mark.parametrize("flag", ["--data-parallel-size", "--data-parallel-size", "--workers"])
def test_replicas_are_workers(flag: str) -> None:
    assert list(workers(load(flag, "3"))) == ["worker-1", "worker-2", "worker-3"]


def test_one_number_has_one_name() -> None:
    with pytest.raises(SettingsError, match="--workers and --data-parallel-size"):
        workers(load("--workers", "2", "--data-parallel-size", "2"))


@pytest.mark.parametrize("flag", ["--enable-expert-parallel", "--worker.enable-expert-parallel"])
def test_workers_that_share_experts_know_their_ranks(flag: str) -> None:
    config = load("--data-parallel-size", "2", flag)
    assert group(config) == 2
    assert variables(config)["BATON_WORKER_ENABLE_EXPERT_PARALLEL"] == "True"
    for rank in range(2):
        command = commands(config, RUN)[f"worker-{rank + 1}"]
        assert command[-4:] == ["--data-parallel-size", "2", "--data-parallel-rank", str(rank)]
    with pytest.raises(
        SettingsError, match="one group of all workers: leave out --prefill-workers"
    ):
        commands(load("--data-parallel-size", "2", "--prefill-workers", "1", flag), RUN)


@pytest.mark.parametrize("flags", [("--workers", "2"), ("--data-parallel-size", "1"), ()])
def test_other_workers_have_no_group(flags: tuple[str, ...]) -> None:
    config = load("--tensor-parallel-size", "2", "--enable-expert-parallel", *flags)
    assert group(config) == 1
    assert not [c for c in commands(config, RUN).values() if "--data-parallel-rank" in c]


def test_workers_of_roles_share_the_machine() -> None:
    started = commands(load("--prefill-workers", "1", "--decode-workers", "2"), RUN)
    pool = {name: command for name, command in started.items() if "worker" in command}
    assert set(pool) == {"prefill-1", "decode-1", "decode-2"}
    assert pool["decode-2"][4:8] == ["--name", "decode-2", "--role", "decode"]
    assert pool["prefill-1"][-4::2] == ["--threads", "--gpu-memory-utilization"]


def test_what_is_given_is_not_shared_out() -> None:
    given = ("--worker.threads", "3", "--worker.gpu-memory-utilization", "0.2")
    for name, command in commands(load("--workers", "2", *given), RUN).items():
        assert "--threads" not in command and "--gpu-memory-utilization" not in command, name


def test_no_worker_at_all_is_refused() -> None:
    with pytest.raises(SettingsError, match="--workers 1"):
        commands(load("--workers", "0"), RUN)
