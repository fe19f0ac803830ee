"""A pin and the way back, as changes of a document that leave the rest of it alone."""

from __future__ import annotations

import pytest

from serving.control.document import Target, parse
from serving.control.edits import rolled_back, with_pin, with_step
from serving.control.revisions import History
from serving.errors import UserError

REST = "tenants: {a: {weight: 2}}\n"


def history(*texts: str) -> History:
    made = History()
    for text in texts:
        made = made.then(text, at="", by="")
    return made


def pinned(version: int) -> str:
    return f"version: 1\nmodels: {{m: {{pin: {{version: {version}}}}}}}\n{REST}"


def stable(text: str) -> Target | None:
    control = parse(text, "x")
    assert control.tenants["a"].weight == 2
    return control.models["m"].stable


def test_a_pin_ends_a_split_and_a_rollout_and_leaves_the_rest() -> None:
    for before in (
        f"version: 1\n{REST}",
        pinned(1),
        f"version: 1\nmodels: {{m: {{split: {{a: {{version: 1, weight: 1}}}}}}}}\n{REST}",
        f"version: 1\nmodels: {{m: {{pin: {{version: 1}}, rollout: {{candidate: {{version: 2}}, step: canary}}}}}}\n{REST}",
    ):
        after = with_pin(before, "m", Target(version=3))
        assert stable(after) == Target(version=3)
        assert not parse(after, "x").models["m"].arms
    assert parse(with_pin("", "m", Target(variant="int8")), "x").models["m"].pin == Target(variant="int8")


def test_a_change_of_one_model_is_none_of_another_that_an_alias_gives_the_same() -> None:
    both = "version: 1\nmodels:\n  a: &it {pin: {version: 1}, rollout: {candidate: {version: 2}, step: promote}}\n  b: *it\n"
    for after in (with_step(both, "a", "rollback"), with_pin(both, "a", Target(version=1))):
        models = parse(after, "x").models
        assert [models[name].stable for name in ("a", "b")] == [Target(version=1), Target(version=2)]


def test_the_way_back_is_the_pin_before_or_out_of_a_rollout() -> None:
    assert stable(rolled_back(history(pinned(1), pinned(2)), "m")) == Target(version=1)
    assert stable(rolled_back(history(pinned(1), pinned(2), pinned(2)), "m")) == Target(version=1)
    on_its_way = f"version: 1\nmodels: {{m: {{pin: {{version: 2}}, rollout: {{candidate: {{version: 3}}, step: promote}}}}}}\n{REST}"
    back = rolled_back(history(pinned(1), on_its_way), "m")
    assert (stable(back), parse(back, "x").models["m"].rollout is not None) == (Target(version=2), True)
    assert stable(rolled_back(history(pinned(1), on_its_way, back), "m")) == Target(version=1)
    assert stable(rolled_back(history(pinned(1), "a mistake", pinned(2)), "m")) == Target(version=1)
    for unknown in (history(), history(pinned(1)), history(f"version: 1\n{REST}", pinned(1))):
        with pytest.raises(UserError):
            rolled_back(unknown, "m")
