"""Rules for the choice of frames."""

from __future__ import annotations

from baton_mm_preprocess.video.sampling import RULES, Sampling


def test_every_rule_on_clips_that_are_shorter_than_it_asks_for() -> None:
    """transformers raises for these; test_families.py compares the others with it."""
    for rule in RULES:
        for total in (1, 2, 3):
            some = Sampling(rule, num_frames=8, fps=1.0, group=2)(total, 30.0)
            assert some == sorted(some) and 1 <= len(set(some)) <= total, (rule, total)
            assert some[-1] < total, (rule, total)


def test_limits_of_long_clips() -> None:
    assert len(Sampling("grouped", fps=2.0, max_frames=10, group=2)(1000, 10.0)) == 10
    assert len(Sampling("spread", fps=2.0, max_frames=10)(1000, 10.0)) == 10
    beyond = Sampling("seconds", fps=2.0, max_seconds=10.0)(3_000, 10.0)
    assert len(beyond) == 20 and beyond[-1] == 2_999, "as many as of ten seconds"
    assert Sampling("inner", fps=1.0, max_frames=4)(300, 10.0)[0] == 10, "without a second"
