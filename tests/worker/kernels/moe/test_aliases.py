"""Names that other servers have for kernels of experts."""

from __future__ import annotations

import pytest

from baton.errors import SettingsError
from baton_worker.kernels.moe import KERNELS
from baton_worker.kernels.moe.aliases import ALIASES, ELSEWHERE, NAMES
from baton_worker.kernels.moe.selector import ExpertKernelSelector


def test_every_alias_names_a_kernel_and_no_name_is_both() -> None:
    assert set(ALIASES.values()) <= set(KERNELS.names())
    assert not set(ALIASES) & set(ELSEWHERE) and not set(KERNELS.names()) & set(ELSEWHERE)


@pytest.mark.parametrize("name", ["DEEP_GEMM", "grouped_mm", "auto", "loop", "nobody's"])
def test_a_name_is_what_it_is_called_here_in_small_letters(name: str) -> None:
    assert NAMES.ours(name) == ALIASES.get(name.lower(), name.lower())


def refusal(name: str) -> str:
    with pytest.raises(SettingsError) as error:
        ExpertKernelSelector(name)
    return error.value.message


@pytest.mark.row("F06.17", refuses=True)
@pytest.mark.parametrize("name", ["cutlass", "FLASHINFER_CUTLASS", "flashinfer_trtllm"])
def test_products_of_other_packages_are_refused_with_what_runs_instead(name: str) -> None:
    said = refusal(name)
    assert f"--moe-backend {name.lower()}: it is not built in; leave this at auto" in said
    assert said.endswith("on a GPU triton multiplies the rows of all experts in one launch.")


@pytest.mark.row("F06.18", refuses=True)
def test_marlin_is_refused_with_what_runs_instead() -> None:
    said = refusal("MARLIN")
    assert said.startswith("--moe-backend marlin: it is not built in; leave this at auto")
    assert "four and eight bits run packed: on a CPU (--quantization)" in said


def test_other_hardware_and_unknown_names_are_refused() -> None:
    assert refusal("aiter") == "--moe-backend aiter: kernels for AMD do not apply here."
    assert "padded" in refusal("nobodys")
