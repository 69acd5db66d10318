"""The architecture, asserted: mirrors, registries, generated files, names, import rules, bans."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from baton import protocol
from baton.net import codec
from baton.net.topology import LINKS, mermaid
from baton.protocol import Message
from baton.registry import Registry
from baton.settings import check_names
from baton_ops.bench import page
from baton_ops.commands.settings import FOLDER, stale

ROOT = Path(__file__).parent.parent
PACKAGES = {
    "shared": ROOT / "shared/baton",
    "gateway": ROOT / "services/gateway/baton_gateway",
    "tokenizer": ROOT / "services/tokenizer/baton_tokenizer",
    "scheduler": ROOT / "services/scheduler/baton_scheduler",
    "mm_preprocess": ROOT / "services/mm-preprocess/baton_mm_preprocess",
    "worker": ROOT / "services/worker/baton_worker",
    "ops": ROOT / "ops/baton_ops",
}
"""Folder of tests -> the package that it mirrors."""

UNMIRRORED = {
    # Steps of image processors: the test of families compares each with transformers.
    "mm_preprocess/processors/any_resolution.py",
    "mm_preprocess/audio/windowed_readers.py",
    "mm_preprocess/processors/colors.py",
    "mm_preprocess/processors/dynamic_tiles.py",
    "mm_preprocess/processors/fitted_patches.py",
    "mm_preprocess/processors/fixed_size.py",
    "mm_preprocess/processors/image_splits.py",
    "mm_preprocess/processors/limited_patches.py",
    "mm_preprocess/processors/padded_patches.py",
    "mm_preprocess/processors/padded_tiles.py",
    "mm_preprocess/processors/pan_and_scan.py",
    "mm_preprocess/processors/patch_sequence.py",
    "mm_preprocess/processors/processed_image.py",
    "mm_preprocess/processors/tilings/image_slices.py",
    "mm_preprocess/processors/tilings/multi_scale_tiles.py",
    "mm_preprocess/processors/tilings/tile_rows.py",
    # Configs to specs of towers: the test of towers compares each with transformers.
    "worker/models/families/aria.py",
    "worker/models/families/deepseek_ocr.py",
    "worker/models/families/deepseek_vl.py",
    "worker/models/families/dots.py",
    "worker/models/families/glm_vision.py",
    "worker/models/families/gemma4_vision.py",
    "worker/models/families/hunyuan_vision.py",
    "worker/models/families/isaac.py",
    "worker/models/families/janus.py",
    "worker/models/families/kanana.py",
    "worker/models/families/keye.py",
    "worker/models/families/internvl.py",
    "worker/models/families/merged_towers.py",
    "worker/models/families/minicpm_v.py",
    "worker/models/families/kimi.py",
    "worker/models/families/nemotron_parse.py",
    "worker/models/families/nemotron_vision.py",
    "worker/models/families/ovis.py",
    "worker/models/families/pangu_vision.py",
    "worker/models/families/qwen_vl.py",
    "worker/models/families/phi_vision.py",
    "worker/models/families/pixtral.py",
    "worker/models/families/qwen_vision.py",
    "worker/models/families/siglip_towers.py",
    "worker/models/families/step_vision.py",
    "worker/models/families/audio_language.py",
    "worker/models/families/whisper_encoder.py",
    "worker/models/families/conformers.py",
    "worker/models/families/dasheng.py",
    "worker/models/families/fun_audio.py",
    "worker/models/families/windowed_audio.py",
    "worker/models/audio/conformer_tower.py",
    "worker/models/audio/conformers.py",
    "worker/models/audio/windowed_tower.py",
    "worker/layers/audio/batch_norm.py",
    "worker/layers/audio/biased_conformer.py",
    "worker/layers/audio/block_conformer.py",
    "worker/layers/audio/conformer.py",
    "worker/layers/audio/convolution.py",
    "worker/layers/audio/local_conformer.py",
    "worker/layers/audio/relative_scores.py",
    "worker/layers/audio/window_stems.py",
    "worker/layers/soft_tokens.py",
    "worker/spec/audio/conformer.py",
    "worker/spec/audio/windowed_tower.py",
    "worker/spec/audio/tower_pair.py",
    "worker/layers/audio/chunk_rotation.py",
    "worker/layers/audio/frame_embedding.py",
    "worker/models/vision/stack.py",
    "worker/layers/vision/convolution.py",
    "worker/layers/vision/cross_attention.py",
    "worker/layers/vision/projectors/learned_queries.py",
    "worker/engine/multimodal/rope_index.py",
    "worker/layers/vision/patch_embedding.py",
    "worker/layers/vision/projectors/qformer.py",
    "worker/layers/vision/vq_encoder.py",
    "worker/layers/vision/window_attention.py",
    "worker/models/vision/build.py",
    # Layers of the model whose tower is tested against transformers, with all it attends to.
    "worker/kv_cache/cross_pages.py",
    # Weights of alignment heads: the test of the step that aligns by them fills them.
    "worker/layers/attention/attention_weights.py",
    "worker/layers/attention/cross_attention.py",
    "worker/layers/attention/cross_states.py",
    "worker/models/vision/tile_layers.py",
    "worker/models/gated_cross_block.py",
    # Layers of Gemma 3n and 4: the parity tests of their texts and that of a tower run all of them.
    "worker/layers/altup.py",
    "worker/layers/attention/kv_reuse.py",
    "worker/layers/ffn/sparse_glu.py",
    "worker/layers/layer_embeddings.py",
    "worker/layers/moe/parallel.py",
    "worker/models/altup_block.py",
    "worker/models/scaled_sandwich.py",
    "worker/models/families/mobilenet.py",
    "worker/models/vision/mobile_blocks.py",
    "worker/models/vision/mobile_tower.py",
    "worker/models/vision/swin_stack.py",
    # The benchmark of a GPU: tests/gpu/test_without_gpu.py runs all of it.
    "worker/bench/gpu/ceilings.py",
    "worker/bench/gpu/device_timer.py",
    "worker/bench/gpu/engine_times.py",
    "worker/bench/gpu/attention_cases.py",
    "worker/bench/gpu/case_inputs.py",
    "worker/bench/gpu/expert_cases.py",
    "worker/bench/gpu/product_cases.py",
    "worker/bench/gpu/sampling_cases.py",
    "worker/bench/gpu/token_cases.py",
    "worker/bench/gpu/kernel_case.py",
    "worker/bench/gpu/kernel_cases.py",
    "worker/bench/gpu/recurrent_cases.py",
    "worker/bench/gpu/kept_memory.py",
    "worker/bench/gpu/kernel_times.py",
    "worker/bench/gpu/model_shapes.py",
    "worker/bench/gpu/report.py",
    # Data without behaviour: the tests of the parser read every field.
    "shared/output_parsing/pieces.py",
    # Data without behaviour: the tests of the transcript read every field.
    "gateway/schemas/responses/chat.py",
    "gateway/schemas/responses/events.py",
    "gateway/schemas/responses/output_items.py",
    "gateway/schemas/responses/response.py",
    # The endpoints of speech: tests/system/test_transcription.py runs them with a model.
    "gateway/api/audio/chunk_outputs.py",
    "gateway/api/audio/speech.py",
    "gateway/api/audio/speech_job.py",
    "gateway/api/audio/verbose_transcript.py",
    "gateway/api/audio/word_times.py",
    "gateway/schemas/audio/speech_responses.py",
    "gateway/streaming/speech_transcript.py",
    "gateway/streaming/speech_usage.py",
    # Live transcripts: tests/system/test_realtime.py runs them with a model.
    "gateway/api/realtime/realtime.py",
    "gateway/api/realtime/session.py",
    "gateway/api/realtime/session_settings.py",
    "gateway/api/realtime/transcription_queue.py",
    "gateway/api/realtime/turn_taking.py",
    "gateway/api/realtime/utterance.py",
    "gateway/schemas/realtime/client_events.py",
    "gateway/schemas/realtime/server_events.py",
    "gateway/schemas/realtime/session_update.py",
    "gateway/streaming/realtime_events.py",
    "worker/models/families/encoder_decoder.py",
    "worker/models/families/whisper.py",
    # Data without behaviour: the test below sends every message through the wire.
    "shared/protocol/administration.py",
    "shared/protocol/base.py",
    "shared/protocol/control.py",
    "shared/protocol/engine.py",
    "shared/protocol/experts.py",
    "shared/protocol/frontend.py",
    "shared/protocol/media.py",
    "shared/protocol/media_encoding.py",
    "shared/protocol/pooling.py",
    "shared/protocol/sampling.py",
    "shared/protocol/speech.py",
    "shared/protocol/transfer.py",
    "shared/protocol/weights.py",
    # A protocol: each of its implementations has its own tests.
    "worker/models/vision/media_tower.py",
    "worker/checkpoint/formats/checkpoint.py",
    "worker/structured_output/matcher.py",
    "worker/engine/forward/forward_pass.py",
    "worker/speculative/proposer.py",
    "worker/kernels/movable.py",
    "worker/kv_transfer/content.py",
    # Parts of one kernel: the tests of its backend compare what it gives.
    "worker/kernels/triton/attention/softmax.py",
    "worker/kernels/triton/attention/tile.py",
    # Memory of one transport: its tests pass blocks between both kinds.
    "worker/kv_transfer/nixl_buffers.py",
    # Part of two kernels: the tests of products and of experts compare what they give.
    "worker/kernels/triton/row_tiles.py",
    "worker/kernels/triton/weight_sums.py",
    # A base class, tables, and what the tests of the families of heads run.
    "worker/models/draft/layer_head.py",
    "worker/models/draft/state_head.py",
    "worker/drafters/layer_head.py",
    "worker/models/families/draft_common.py",
    "worker/models/families/medusa.py",
    # Data without behaviour: the tests of the store and of the API read every field.
    "gateway/durable/batch_record.py",
    # Data without behaviour: the tests of events read the counters.
    "scheduler/state/counters.py",
    # Data without behaviour: the tests of administration read every field.
    "scheduler/state/pending_command.py",
    # Data without behaviour: the tests of weight updates read every field.
    "scheduler/state/weight_update.py",
    # Data without behaviour: the tests of families and layers read every field.
    "worker/spec/attention.py",
    "worker/spec/audio/frame_steps.py",
    "worker/spec/audio/tower.py",
    "worker/spec/checkpoint.py",
    "worker/spec/draft_head.py",
    "worker/spec/embedding.py",
    "worker/spec/encoder.py",
    "worker/spec/ffn.py",
    "worker/spec/mobile_tower.py",
    "worker/spec/norm.py",
    "worker/spec/rope.py",
    "worker/spec/state_space.py",
    "worker/spec/swin.py",
    "worker/spec/tiled_tower.py",
    "worker/spec/vision.py",
    "worker/spec/vq_tower.py",
}
"""Modules that need no test file of their own, each with its reason."""


def modules() -> Iterator[tuple[str, Path]]:
    """(name as in `UNMIRRORED`, file) of every module; packages and entry points are exempt."""
    for folder, package in PACKAGES.items():
        for path in sorted(package.rglob("*.py")):
            if path.name not in {"__init__.py", "__main__.py", "config.py"} or (
                path.name == "config.py" and path.parent != package
            ):
                yield f"{folder}/{path.relative_to(package)}", path


def test_every_module_has_its_mirror() -> None:
    wanted = {name for name, _ in modules()} - UNMIRRORED
    mirrors = {n: ROOT / "tests" / Path(n).parent / f"test_{Path(n).name}" for n in wanted}
    assert not [name for name, mirror in mirrors.items() if not mirror.is_file()]


def test_the_list_of_exceptions_is_not_stale() -> None:
    assert {name for name, _ in modules()} >= UNMIRRORED


@pytest.mark.parametrize("folder", sorted(PACKAGES))
def test_every_package_is_typed_and_explains_itself(folder: str) -> None:
    package = PACKAGES[folder]
    assert (package / "py.typed").is_file()
    for path in package.rglob("*.py"):
        tree = ast.parse(path.read_text())
        assert ast.get_docstring(tree), f"{path} has no docstring"
        untyped = [
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and not node.returns
            and not any("triton.jit" in ast.unparse(d) for d in node.decorator_list)
        ]
        assert not untyped, path


MOST_MODULES = 20
ONE_FILE_A_MEMBER = {PACKAGES["worker"] / "models/families"}
"""Folders that are tables: one file for each family of architectures."""


def test_folders_stay_small() -> None:
    sizes: dict[Path, int] = {}
    for _, path in importables():
        if path.name != "__init__.py":
            sizes[path.parent] = sizes.get(path.parent, 0) + 1
    crowded = {f: n for f, n in sizes.items() if n > MOST_MODULES and f not in ONE_FILE_A_MEMBER}
    assert not crowded


def test_no_test_imports_another() -> None:
    """Helpers that tests share live in `tests/support` and `tests/fakes`."""
    files = sorted((ROOT / "tests").rglob("*.py"))
    found = [
        f"{path.relative_to(ROOT)}: {node.module}"
        for path in files
        if re.search(r"from\s[\s.\w]*test_", text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and "test_" in f".{node.module}".rpartition(".")[2]
    ]
    assert not found


# ---------------------------------------------------------------- registries


def registries() -> list[tuple[str, str]]:
    """(module, attribute) of every `NAME = Registry(...)` at the top of a module of ours."""
    found = []
    for name, path in importables():
        text = path.read_text()
        for node in ast.parse(text).body if "Registry(" in text else ():
            match node:
                case ast.Assign([ast.Name(target)], ast.Call(ast.Name("Registry"))) | ast.AnnAssign(
                    ast.Name(target), _, ast.Call(ast.Name("Registry"))
                ):
                    found.append((name, target))
    return found


def importables() -> Iterator[tuple[str, Path]]:
    """(importable name, file) of every file but entry points, which would run."""
    for package in PACKAGES.values():
        for path in sorted(package.rglob("*.py")):
            if path.name != "__main__.py":
                parts = (package.name, *path.relative_to(package).with_suffix("").parts)
                yield ".".join(p for p in parts if p != "__init__"), path


def test_there_are_registries() -> None:
    assert registries()


@pytest.mark.parametrize(("module", "attribute"), registries())
def test_every_registry_target_imports(module: str, attribute: str) -> None:
    registry = getattr(importlib.import_module(module), attribute)
    assert isinstance(registry, Registry) and registry.names()
    for name in registry.names():
        assert registry.load(name) is not None


# ---------------------------------------------------------------- generated files and names


def test_generated_pages_are_fresh() -> None:
    assert FOLDER == ROOT / "ops"
    assert not stale(), "run `baton settings --write`"


def test_the_page_of_measurements_is_fresh() -> None:
    assert not page.stale(), "run `baton bench page --write`"


def test_the_diagram_of_the_architecture_page_is_fresh() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    diagrams = re.findall(r"^```mermaid\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert mermaid() in diagrams, "paste the output of `baton topology` into ARCHITECTURE.md"


COMPOSE = sorted([ROOT / "docker-compose.yml", *(ROOT / "ops/compose").glob("*.yml")])


class Compose(yaml.SafeLoader):
    """YAML with the tags that compose adds to replace or drop what an overlay inherits."""


def _tagged(loader: yaml.SafeLoader, node: yaml.Node) -> object:
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    return None


for _tag in ("!override", "!reset"):
    Compose.add_constructor(_tag, _tagged)


def compose(path: Path) -> dict[str, Any]:
    """A compose file as data."""
    loaded = yaml.load(path.read_text(), Compose)
    assert isinstance(loaded, dict)
    return loaded


@pytest.mark.parametrize("path", COMPOSE, ids=lambda p: p.name)
def test_compose_uses_declared_names_only(path: Path) -> None:
    text = path.read_text()
    names = set(re.findall(r"\bBATON_[A-Z0-9_]+", text))
    check_names({name: "" for name in names})
    for service in compose(path)["services"].values():
        environment = service.get("environment", {})
        assert not [n for n in environment if n.startswith(("BATON_COMPOSE_", "BATON_TORCH_"))]


def test_every_service_is_confined_in_compose() -> None:
    services = compose(ROOT / "docker-compose.yml")["services"]
    assert set(services) >= {"gateway", "tokenizer", "mm-preprocess", "scheduler", "worker"}
    for name, service in services.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert not service["user"].startswith("0"), name
        assert service["mem_limit"] and service["pids_limit"], name
        assert not any("docker.sock" in volume for volume in service.get("volumes", [])), name
        if name != "gateway":
            assert "ports" not in service, f"{name} must not be reachable from the host"


def test_only_the_fetcher_reaches_the_outside() -> None:
    loaded = compose(ROOT / "docker-compose.yml")
    assert loaded["networks"]["fabric"] == {"internal": True}
    networks = {name: set(s["networks"]) for name, s in loaded["services"].items()}
    assert networks.pop("model") == {"egress"}
    assert networks.pop("gateway") == {"front", "fabric"}
    assert all(found == {"fabric"} for found in networks.values()), networks


# ---------------------------------------------------------------- import rules


def test_import_rules() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_torch_is_not_needed_outside_the_worker() -> None:
    command = [sys.executable, str(ROOT / "tests/support/no_torch.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# ---------------------------------------------------------------- bans, by syntax tree

BANNED_IMPORTS = {
    "pickle",
    "cPickle",
    "cloudpickle",
    "dill",
    "shelve",
    "marshal",
    "joblib",
    "jsonpickle",
}
BANNED_CALLS = {"eval", "exec", "compile", "__import__"}
BANNED_ATTRIBUTES = {
    ("torch", "load"),
    ("torch", "save"),
    ("yaml", "unsafe_load"),
    ("os", "system"),
    ("os", "popen"),
    ("jinja2", "Environment"),
    ("jinja2", "Template"),
}
BANNED_METHODS = {"recv_pyobj", "send_pyobj"}
BANNED_ARGUMENTS = {"shell", "allow_pickle", "trust_remote_code"}


def _called(node: ast.Call) -> tuple[str, str]:
    """("torch", "load") for `torch.load(...)`, ("", "eval") for `eval(...)`."""
    if isinstance(node.func, ast.Attribute):
        owner = node.func.value
        return (owner.id if isinstance(owner, ast.Name) else "?"), node.func.attr
    return "", node.func.id if isinstance(node.func, ast.Name) else "?"


def _imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    return [name.partition(".")[0] for name in names]


def offences(tree: ast.AST) -> Iterator[str]:
    """What the tree does that nothing in this repository may do."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (f"imports {n}" for n in _imported(node) if n in BANNED_IMPORTS)
        if not isinstance(node, ast.Call):
            continue
        owner, name = _called(node)
        if (owner == "" and name in BANNED_CALLS) or name in BANNED_METHODS:
            yield f"line {node.lineno}: calls {name}"
        if (owner, name) in BANNED_ATTRIBUTES:
            yield f"line {node.lineno}: calls {owner}.{name}"
        for argument in node.keywords:
            on = not (isinstance(argument.value, ast.Constant) and not argument.value.value)
            if argument.arg in BANNED_ARGUMENTS and on:
                yield f"line {node.lineno}: passes {argument.arg}"


def sources() -> list[Path]:
    """Every Python file of the repository: code, tools and tests."""
    skipped = {".venv", "node_modules", "build", "dist"}
    found = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [f for f in folders if f not in skipped and not f.startswith(".")]
        found += [Path(folder) / f for f in files if f.endswith(".py")]
    return sorted(found)


def test_nothing_unpickles_evaluates_or_runs_a_shell() -> None:
    assert len(sources()) > 50
    found = {
        str(path.relative_to(ROOT)): problems
        for path in sources()
        if (problems := list(offences(ast.parse(path.read_text()))))
    }
    assert not found


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from dill import loads",
        "eval(text)",
        "import torch\ntorch.load(path)",
        "subprocess.run(command, shell=True)",
        "numpy.load(path, allow_pickle=flag)",
        "socket.recv_pyobj()",
        "AutoModel.from_pretrained(path, trust_remote_code=True)",
    ],
)
def test_the_ban_sees(code: str) -> None:
    assert list(offences(ast.parse(code)))


@pytest.mark.parametrize("code", ["re.compile(x)", "model.eval()", "run(c, shell=False)"])
def test_the_ban_lets_pass(code: str) -> None:
    assert not list(offences(ast.parse(code)))


# ---------------------------------------------------------------- the wire

MESSAGES = sorted(
    (m for m in vars(protocol).values() if isinstance(m, type) and issubclass(m, Message)),
    key=lambda m: m.__name__,
)


def test_every_message_travels_on_a_link() -> None:
    carried = {m for link in LINKS for m in (*link.requests, *link.replies)}
    assert carried == set(MESSAGES) - {Message}


@pytest.mark.parametrize(
    "kind", [m for m in MESSAGES if m is not Message], ids=lambda m: m.__name__
)
def test_every_message_survives_the_wire(kind: type[Message]) -> None:
    accepted = tuple(m for m in MESSAGES if m is not Message)

    @settings(max_examples=30, deadline=None)
    @given(instances(kind))
    def round_trip(message: Message) -> None:
        _, back = codec.decode(codec.encode(message), accepted)
        assert type(back) is kind
        assert back == message

    round_trip()


def instances(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Instances of a struct, every field drawn from its annotation."""
    hints = get_type_hints(kind)
    names = (field.name for field in msgspec.structs.fields(kind))
    return st.builds(kind, **{name: values(hints[name]) for name in names})


PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(0, 2**63 - 1),
    float: st.floats(allow_nan=False),
    str: st.text(max_size=8),
    bytes: st.binary(max_size=8),
    bool: st.booleans(),
    type(None): st.none(),
}


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of the annotations that messages use."""
    if hint in PLAIN:
        return PLAIN[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return st.tuples(*map(values, arguments))
    if origin is tuple:
        return st.lists(values(arguments[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(values(arguments[0]), values(arguments[1]), max_size=3)
    if origin in {Union, UnionType}:
        return st.one_of([values(a) for a in arguments])
    return instances(hint)


def test_settings_load_where_only_the_shared_libraries_are() -> None:
    """Every process reads every `Config`, to tell an unknown variable from a foreign one."""
    code = (
        "import sys; from baton.settings import config_classes; config_classes();"
        "print(*{m.partition('.')[0] for m in sys.modules})"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    heavy = {"torch", "numpy", "fastapi", "starlette", "tokenizers", "llguidance", "jinja2"}
    assert heavy.isdisjoint(loaded)
