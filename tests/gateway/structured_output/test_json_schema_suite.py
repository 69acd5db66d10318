"""The official JSON Schema test suite: accepted schemas are enforced exactly, others rejected.

The grammar accepts no invalid instance. It accepts every valid one in some spelling: members in the
order of the schema, numbers without a redundant fraction.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from baton.errors import InvalidRequest
from baton.structured_output.json_schema import walk
from baton.structured_output.llguidance import problem
from baton_gateway.structured_output.request import Constraint, constraint
from baton_gateway.structured_output.validator import grammar_error
from tests.fakes.grammar_cases import Case, Reader, suite

pytestmark = pytest.mark.row("F10.01")

CASES = suite()
NEVER_WRITTEN = {
    # A leap second at another offset than zero.
    ("optional/format/date-time", "a valid date-time with a leap second, with minus offset"),
    ("optional/format/time", "valid leap second, positive time-offset"),
    ("optional/format/time", "valid leap second, large positive time-offset"),
    ("optional/format/time", "valid leap second, negative time-offset"),
    ("optional/format/time", "valid leap second, large negative time-offset"),
    # Quotes and bracketed addresses in an e-mail address.
    ("optional/format/email", "a quoted string with a space in the local part is valid"),
    ("optional/format/email", "a quoted string with a double dot in the local part is valid"),
    ("optional/format/email", "a quoted string with a @ in the local part is valid"),
    ("optional/format/email", "an IPv6-address-literal after the @ is valid"),
}
"""(file, description) of valid instances that no output spells."""


def admitted(case: Case) -> Constraint | InvalidRequest:
    """The constraint that a client's schema becomes, or why it is refused."""
    try:
        found = constraint({"structured_outputs": {"json": case.schema}})
    except InvalidRequest as error:
        return error
    assert found is not None
    trouble = problem(found.grammar)
    return found if trouble is None else grammar_error(trouble, found)


@pytest.mark.parametrize("file", sorted({case.file for case in CASES}))
def test_followed_or_refused(file: str) -> None:
    wrong = []
    for case in (one for one in CASES if one.file == file):
        found = admitted(case)
        if isinstance(found, InvalidRequest):
            check_refusal(found, case)
            continue
        reader = Reader(found.grammar)
        for description, instance, valid in case.tests:
            if (file, description) in NEVER_WRITTEN:
                valid = False
            elif "only an annotation" in description:
                # The suite has a `format` checked by those alone who say so; we do.
                valid = False
            if reader.accepts_value(instance) != valid:
                wrong.append((case.name, description, instance, valid))
    assert not wrong


def check_refusal(error: InvalidRequest, case: Case) -> None:
    """It is a 400 that says which keyword, or that nothing at all matches."""
    assert error.status == 400 and error.param == "structured_outputs.json", case
    if isinstance(case.schema, bool) or "Unsatisfiable" in error.message:
        return
    assert set(re.findall(r"[\w$]+", error.message)) & keywords(case.schema), error.message


def keywords(schema: Any) -> set[str]:
    """Every keyword that stands anywhere in a schema."""
    return {name for _, one in walk(schema) if isinstance(one, dict) for name in one}


def test_how_much_is_followed() -> None:
    """What is admitted may grow; a test that refuses everything proves nothing."""
    followed = Counter(
        "/" in case.file for case in CASES if not isinstance(admitted(case), InvalidRequest)
    )
    assert (followed[False], followed[True]) >= (190, 37)
