"""Engines of one process, of two, and of a group that shares experts give the same tokens."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from baton.errors import SettingsError
from baton.protocol import Sampling, WeightVersion
from baton_worker.config import Config
from baton_worker.engine.engine import Engine
from baton_worker.executor.commands import LoadShard
from baton_worker.executor.executor import Executor, assemble
from baton_worker.kv_transfer.wire_format import layout
from baton_worker.layers.build_context import BuildContext
from baton_worker.weight_transfer.contents import source_of
from baton_worker.worker_info import worker_info
from tests.fakes.scheduler_planner import Planner, Sequence, run_all
from tests.support import tiny_models

PROMPTS = ([1, 403, 407], list(range(1, 60)), [1] + [7] * 20)


def config(stories: Path, run_dir: Path, ranks: int) -> Config:
    return Config(
        model=str(stories),
        device="cpu",
        dtype="float32",
        max_kv_bytes=1 << 20,
        host_cache_bytes=1 << 18,
        max_num_seqs=8,
        threads=2,
        tensor_parallel_size=ranks,
        run_dir=run_dir,
    )


@pytest.fixture(scope="module")
def alone(stories: Path, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine.build(config(stories, tmp_path_factory.mktemp("run"), 1))


@pytest.fixture(scope="module")
def two(stories: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    engine = Engine.build(config(stories, tmp_path_factory.mktemp("run"), 2))
    yield engine
    engine.close()


def tokens(engine: Engine, prompts: Iterable[list[int]] = PROMPTS) -> list[list[int]]:
    engine.reset()
    made = [Sequence(prompt, Sampling(24, temperature=0.0)) for prompt in prompts]
    return run_all(Planner(engine, num_pages=32), made)


@pytest.mark.row("F14.03")
def test_two_ranks_give_the_tokens_of_one(alone: Engine, two: Engine) -> None:
    assert tokens(two) == tokens(alone)


def test_sizes_are_those_of_all_ranks(alone: Engine, two: Engine) -> None:
    """So the pages are as many: each rank has half of every one."""
    one, both = alone.resolved, two.resolved
    assert both.ranks == 2 and both.build.threads == 1 and one.build.threads == 2
    assert both.page_bytes == one.page_bytes and both.num_pages == one.num_pages
    assert both.host_pages == one.host_pages > 0
    halves = [layer.shape[3] * 2 for layer in two.cache.layers]
    assert halves == [layer.shape[3] for layer in alone.cache.layers]
    # Norms are on both.
    assert one.weight_bytes < both.weight_bytes < 1.05 * one.weight_bytes
    assert "1 threads on each of 2 ranks" in str(both)


def test_keys_are_offered_to_workers_of_as_many_ranks(
    alone: Engine, two: Engine, stories: Path, tmp_path: Path
) -> None:
    relay = two.kv_transfer(config(stories, tmp_path, 2), "two")
    relay.start()
    info = worker_info(two, "m", "both", relay)
    assert len(set(info.kv_address.split(","))) == 2
    assert info.kv_layout == f"{layout(two.cache)}/2 ranks"
    relay.close()
    relay = alone.kv_transfer(config(stories, tmp_path, 1), "one")
    relay.start()
    assert worker_info(alone, "m", "both", relay).kv_layout == layout(alone.cache)
    relay.close()


@pytest.mark.row("F14.03", "F14.14")
def test_weights_of_two_ranks_change_as_those_of_one(
    alone: Engine, two: Engine, stories: Path, tmp_path: Path
) -> None:
    before, wanted, given = tokens(alone), [], config(stories, tmp_path, 2)
    paths = [changed(stories, tmp_path / "other"), stories]
    versions = [
        WeightVersion(number, f"v{number}", bytes([number]), (source_of(path),))
        for number, path in enumerate(paths, 1)
    ]
    alone_given = config(stories, tmp_path, 1)
    for version in versions:
        alone.switch_to(alone.load_version(version), version, alone_given)
        wanted.append(tokens(alone))
    assert wanted[0] != before == wanted[1] and two.update_blocker is None
    for version, now in zip(versions, wanted, strict=True):
        loaded, ran = two.load_version(version), tokens(two)
        assert two.try_out(loaded) == "" and tokens(two) == ran, "the trial has pages of its own"
        two.switch_to(loaded, version, given)
        assert tokens(two) == now and two.version == version
    # A rank that cannot load them says so to all: nothing changes.
    team: Any = two._team
    loaded = two.load_version(versions[0])
    team._followers.commands.send(LoadShard(str(tmp_path / "nowhere"), []))
    assert "Rank 1 could not load them" in two.try_out(loaded)
    two.drop_version()
    assert tokens(two) == before
    # A worker that starts later begins with the version in use.
    with closing(Engine.build(given, versions[0])) as later:
        assert tokens(later) == wanted[0]


@pytest.mark.row("F14.05", "F14.06")
def test_two_stages_give_the_tokens_of_one(alone: Engine, stories: Path, tmp_path: Path) -> None:
    """Their weights change together, too."""
    given = config(stories, tmp_path / "run", 1).model_copy(update={"pipeline_parallel_size": 2})
    version = WeightVersion(1, "v1", b"1", (source_of(changed(stories, tmp_path / "other")),))
    with closing(Engine.build(given)) as both:
        one, two = alone.resolved, both.resolved
        assert two.ranks == 2 and "on each of 2 ranks" in str(two)
        assert two.page_bytes == one.page_bytes and two.num_pages == one.num_pages
        # A head that is tied has the table of the first stage, too.
        assert one.weight_bytes < two.weight_bytes < 1.25 * one.weight_bytes
        relay = both.kv_transfer(given, "both")
        relay.start()
        assert relay.layout.endswith("/2 ranks/stages of 3,2 layers")
        relay.close()
        assert tokens(both) == tokens(alone)
        loaded = both.load_version(version)
        assert both.try_out(loaded) == ""
        both.switch_to(loaded, version, given)
        now = tokens(both)
    before = WeightVersion(2, "v2", b"2", (source_of(stories),))
    alone_given = config(stories, tmp_path / "run", 1)
    alone.switch_to(alone.load_version(version), version, alone_given)
    assert tokens(alone) == now
    alone.switch_to(alone.load_version(before), before, alone_given)


def changed(stories: Path, folder: Path) -> Path:
    """The model with other weights."""
    shutil.copytree(stories, folder)
    path = next(folder.glob("*.safetensors"))
    tensors = {name: 1.5 * t if "down_proj" in name else t for name, t in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"enable_expert_parallel": True}, "one process has all experts"),
        ({"data_parallel_size": 2}, "workers that share no experts need no group"),
        (
            {"data_parallel_size": 2, "tensor_parallel_size": 2, "enable_expert_parallel": True},
            "one process. Leave out --tensor-parallel-size 2",
        ),
        (
            {"data_parallel_size": 2, "pipeline_parallel_size": 2, "enable_expert_parallel": True},
            "one process. Leave out --pipeline-parallel-size 2",
        ),
        ({"pipeline_parallel_size": 2, "enable_lora": True}, "the leader has, and it has those of"),
        ({"enable_eplb": True}, "experts move between the workers of an expert group"),
        ({"eplb_config": "{}"}, "experts are not balanced. Add --enable-eplb"),
        ({"data_parallel_rank": 1}, "ranks are counted from 0, and there are 1"),
        (
            {"tensor_parallel_size": 2, "enable_expert_parallel": True, "all2all_backend": "mori"},
            "--all2all-backend mori: this needs MoRI between AMD GPUs",
        ),
        (
            {"decode_context_parallel_size": 2},
            "--decode-context-parallel-size 2: --tensor-parallel-size is 1, which is no multiple",
        ),
        (
            {"tensor_parallel_size": 3, "decode_context_parallel_size": 3},
            "--decode-context-parallel-size 3: --block-size is 16, which is no multiple of it",
        ),
    ],
)
def test_numbers_that_do_not_go_together_are_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(why)):
        Engine.build(Config(model="nobody/reads-this", **settings))


@pytest.mark.row("F06.21")
def test_ranks_with_whole_experts_give_the_tokens_of_one(run_dir: Path, tmp_path: Path) -> None:
    tiny_models.save_model(tmp_path / "model", "Qwen3MoeForCausalLM")
    found = []
    for ranks in (1, 2):
        given = config(tmp_path / "model", run_dir, ranks)
        engine = Engine.build(given.model_copy(update={"enable_expert_parallel": ranks > 1}))
        with closing(engine):
            found.append(tokens(engine, [list(range(5, 40)), [7] * 9]))
    assert found[0] == found[1]


@pytest.mark.row("F14.09", "F14.10")
@pytest.mark.parametrize(
    ("architecture", "codes"),
    [
        ("LlamaForCausalLM", "auto"),
        ("LlamaForCausalLM", "fp8"),
        ("Gemma3ForCausalLM", "auto"),
        ("DeepseekV3ForCausalLM", "auto"),
    ],
)
def test_ranks_that_share_tokens_give_those_of_one_in_less_memory(
    run_dir: Path, tmp_path: Path, architecture: str, codes: str
) -> None:
    """Latents, or keys of one head: two ranks would have them twice, and have them once."""
    tiny_models.save_model(tmp_path / "model", architecture, num_key_value_heads=1)
    found, page_bytes, described = [], [], ""
    for ranks, context in ((1, 1), (2, 1), (2, 2)):
        given = config(tmp_path / "model", run_dir, ranks)
        settings = {"decode_context_parallel_size": context, "kv_cache_dtype": codes}
        settings |= {"hybrid_kv_cache": False}  # The planner of these tests knows one table.
        with closing(Engine.build(given.model_copy(update=settings))) as engine:
            found.append(tokens(engine, [list(range(5, 40)), [7] * 9, [3]]))
            page_bytes.append(engine.resolved.page_bytes)
            described = str(engine.resolved)
    assert found[0] == found[1] == found[2]
    few = architecture == "Gemma3ForCausalLM"  # Its windows are on both ranks.
    assert page_bytes[0] < page_bytes[2] if few else page_bytes[0] == page_bytes[2]
    assert page_bytes[2] < page_bytes[1] if few else 2 * page_bytes[2] == page_bytes[1]
    assert "on each of 2 ranks, of which 2 share KV" in described


class Group:
    """Two workers that share the experts, as threads."""

    def __init__(self, model: Path, run_dir: Path) -> None:
        base = config(model, run_dir, 1).model_copy(
            update={
                "enable_expert_parallel": True,
                "data_parallel_size": 2,
                "num_gpu_blocks_override": 32,
            }
        )
        self.given = [base.model_copy(update={"data_parallel_rank": rank}) for rank in range(2)]

    def run(self, prompts: list[list[list[int]]]) -> list[list[list[int]]]:
        """The tokens of each worker's prompts."""
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(self._work, self.given, prompts))

    def _work(self, given: Config, prompts: list[list[int]]) -> list[list[int]]:
        """As a service does: own steps, then those of the other, until both are to end."""
        with closing(Engine.build(given)) as engine:
            assert engine.in_lockstep and engine.resolved.ranks == 1
            engine.run_dummy_step()
            found = tokens(engine, prompts)
            engine.leave()
        return found


@pytest.mark.row("F13.09")
@pytest.mark.row("F14.07")
def test_workers_that_share_experts_give_the_tokens_of_one(run_dir: Path, tmp_path: Path) -> None:
    """One has much to do, the other little, or nothing but to lend its experts."""
    tiny_models.save_model(tmp_path / "model", "DeepseekV3ForCausalLM")
    prompts = [[list(range(5, 40)), [7] * 9], [[3, 4]]]
    with closing(Engine.build(config(tmp_path / "model", run_dir, 1))) as alone:
        assert not alone.in_lockstep and not alone.run_dummy_step()
        alone.leave()
        expected = [tokens(alone, each) for each in prompts]
    group = Group(tmp_path / "model", run_dir)
    assert group.run(prompts) == expected
    assert group.run([prompts[0], []]) == [expected[0], []]
    assert list(run_dir.iterdir()) == []


def test_one_process_is_a_team_of_its_own(stories: Path, tmp_path: Path) -> None:
    given = config(stories, tmp_path, 1)
    team = assemble(given, stories, BuildContext.from_config(given).device)
    assert type(team) is Executor and team.ranks.size == 1
    assert team.model(given) is given
    team.close()


def test_a_team_that_cannot_be_is_let_go(stories: Path, tmp_path: Path) -> None:
    """No follower outlives a start that has failed."""
    given = config(stories, tmp_path, 2).model_copy(update={"task": "embed", "max_model_len": 9999})
    with pytest.raises(SettingsError):
        Engine.build(given)
    assert not list(tmp_path.glob("ranks-*"))
