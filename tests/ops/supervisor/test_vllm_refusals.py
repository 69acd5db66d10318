from __future__ import annotations

from collections import Counter

from baton_ops.supervisor.flags import table
from baton_ops.supervisor.options import Serve, serve_config
from baton_ops.supervisor.vllm_refusals import REFUSED


def test_each_flag_is_refused_once_and_is_none_of_ours() -> None:
    named = Counter(flag for refusal in REFUSED for flag in (*refusal.switches, *refusal.flags))
    assert not [flag for flag, count in named.items() if count > 1]
    assert issubclass(serve_config(), Serve)
    assert not {flag[2:] for flag in named} & table(Serve.model_fields).keys()
