from __future__ import annotations

import pytest

from baton.errors import SettingsError
from baton.protocol import Fetch, Grant, Missing
from baton.tokens import pack
from baton_worker.kv.transfer import Exporter
from tests.fakes.pages import GRANT, TOKEN


@pytest.mark.parametrize(
    "wrong",
    [
        {"token": b"short"},
        {"length": 0},
        {"length": 41},
        {"pages": pack([0, 8], "I")},
        {"pages": b""},
    ],
)
def test_a_grant_that_does_not_fit_is_refused(source: Exporter, wrong: dict[str, object]) -> None:
    fields = {"token": TOKEN, "pages": pack([0, 1], "I"), "length": 9} | wrong
    with pytest.raises(SettingsError):
        source.grant(Grant(1, 9, **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize("layer", [-1, 2, 2**31])
@pytest.mark.parametrize("bounds", [(0, 1), (-1, 5), (0, 2**40), (5, 5), (36, 38)])
def test_no_index_of_a_stranger_reads_anything(
    source: Exporter, layer: int, bounds: tuple[int, int]
) -> None:
    source.grant(GRANT)
    answer = source._answer(Fetch(9, TOKEN, layer, *bounds))
    assert isinstance(answer, Missing)
    assert answer.reason == "refused"
    assert source.refused == 1
