from __future__ import annotations

from baton.output_parsing.tools import Tools
from tests.support.model_outputs import function

SCHEMAS = [
    ({"type": "string"}, {"string"}),
    ({"type": ["string", "null"]}, {"string", "null"}),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, {"integer", "null"}),
    ({"type": "integer", "nullable": True}, {"integer", "null"}),
    ({"enum": ["a", 1, None]}, {"string", "integer", "null"}),
    ({"const": True}, {"boolean"}),
    ({"properties": {}}, {"object"}),
    ({"$ref": "#/$defs/a~1b"}, {"array"}),
    ({"$ref": "#/$defs/loop"}, set()),
    ({"$ref": "elsewhere"}, set()),
    ({"type": 3}, set()),
    ({"anyOf": 3}, set()),
    (None, set()),
]


def test_types_of_a_parameter() -> None:
    for schema, types in SCHEMAS:
        tool = function("f", x="string")
        parameters = tool["function"]["parameters"]
        parameters["properties"]["x"] = schema
        parameters["$defs"] = {"a/b": {"type": "array"}, "loop": {"$ref": "#/$defs/loop"}}
        assert Tools([tool]).types("f", "x") == types


def test_names_and_bad_entries() -> None:
    tools = Tools([function("f"), {"name": "g"}, {"function": 3}, {"name": 4}])
    assert "f" in tools and "g" in tools and "h" not in tools
    assert tools.types("g", "x") == tools.types("h", "x") == frozenset()
