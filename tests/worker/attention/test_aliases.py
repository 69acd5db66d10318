"""Names that other servers have for backends."""

from __future__ import annotations

import pytest

from baton.errors import SettingsError
from baton_worker.attention import BACKENDS
from baton_worker.attention.aliases import ALIASES, ELSEWHERE, NAMES
from baton_worker.attention.selector import AttentionSelector


def test_every_alias_names_a_backend_and_no_name_is_both() -> None:
    assert set(ALIASES.values()) <= set(BACKENDS.names())
    assert not set(ALIASES) & set(ELSEWHERE) and not set(BACKENDS.names()) & set(ELSEWHERE)


@pytest.mark.parametrize("name", ["FLASH_ATTN", "sdpa", "auto", "cpu", "nobody's"])
def test_a_name_is_what_it_is_called_here_in_small_letters(name: str) -> None:
    assert NAMES.ours(name) == ALIASES.get(name.lower(), name.lower())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        pytest.param(
            "FLASHMLA",
            "leave this at auto, where triton reads latents in place on a GPU",
            marks=pytest.mark.row("F04.24", refuses=True),
        ),
        pytest.param(
            "cutlass_mla",
            "leave this at auto, where triton reads latents in place on a GPU",
            marks=pytest.mark.row("F04.23", refuses=True),
        ),
        ("fa4", "it is not built in; on a GPU triton reads pages in place"),
        ("TREE_ATTN", "a mask, which triton, cpu, grouped, reference and flex know"),
        ("MAMBA2_ATTN", "layers that keep a state choose no backend"),
        ("aiter", "backends for AMD do not apply here"),
        ("pallas", "backends for this hardware do not apply here"),
    ],
)
def test_a_backend_that_is_elsewhere_is_refused_with_what_to_do(name: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said) as refusal:
        AttentionSelector(name)
    assert f"--attention-backend {name.lower()}: " in str(refusal.value)


@pytest.mark.row("F04.27")
@pytest.mark.parametrize("name", ["ROCM_ATTN", "rocm_aiter_fa", "ROCM_AITER_MLA"])
def test_backends_for_amd_are_refused_with_a_sentence(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name.lower()}: .* for AMD do not apply here"):
        AttentionSelector(name)
