"""Description of the machine."""

from __future__ import annotations

import json

from baton_ops.bench.machine import cpu_model, facts


def test_cpu_model_is_read_from_cpuinfo() -> None:
    assert cpu_model("processor\t: 0\nmodel name\t: A Fast One @ 2.0GHz\n") == "A Fast One @ 2.0GHz"
    assert cpu_model("processor\t: 0\nModel\t\t: A Small Board\n") == "A Small Board"
    assert cpu_model("") == ""


def test_facts_are_plain_json() -> None:
    found = facts()
    assert json.loads(json.dumps(found)) == found
    assert found["cores"] >= 1 and found["memory_bytes"] > 0 and found["cpu"]
