"""What may stand in a control document, and where a mistake is told."""

from __future__ import annotations

import pytest

from serving.control.document import Arm, Control, ModelControl, Target, TenantControl, parse
from serving.errors import UserError
from serving.settings import IN_CONTROL, GatewaySettings, ModelSettings

WHOLE = """
version: 1
models:
  digits:
    pin: {version: 2, variant: int8}
    sticky_by: header:X-User
    rollout: {candidate: {version: 3}, step: canary, canary_ratio: 0.2}
  wine:
    split:
      new: {version: 7, weight: 1}
      old: {version: 6, weight: 3}
      gone: {version: 5, weight: 0}
tenants:
  vision:
    weight: 2
    reserved_ratio: 0.25
    quotas:
      requests: {per: second, limit: 50}
      dollars: {per: month, limit: 900}
      concurrent: 4
"""


def test_a_document_is_read_whole() -> None:
    control = parse(WHOLE, "control.yaml")
    digits, wine, vision = control.models["digits"], control.models["wine"], control.tenants["vision"]
    assert digits.stable == Target(version=2, variant="int8")
    assert digits.arms == {
        "canary": Arm(version=3, weight=0.2),
        "stable": Arm(version=2, variant="int8", weight=0.8),
    }
    assert digits.sticky_by == "header:x-user"
    assert wine.stable is None
    assert list(wine.arms) == ["new", "old"]
    assert (vision.weight, vision.reserved_ratio, vision.quotas.concurrent) == (2, 0.25, 4)
    assert vision.quotas.requests is not None
    assert vision.quotas.requests.per == "second"
    assert vision.quotas.tokens is None


@pytest.mark.parametrize(
    ("step", "stable", "num_arms"),
    [
        ("shadow", Target(version=1), 0),
        ("canary", Target(version=1), 2),
        ("promote", Target(version=2), 0),
        ("rollback", Target(version=1), 0),
    ],
)
def test_a_step_says_what_answers(step: str, stable: Target, num_arms: int) -> None:
    text = f"version: 1\nmodels: {{m: {{pin: {{version: 1}}, rollout: {{candidate: {{version: 2}}, step: {step}}}}}}}"
    model = parse(text, "x").models["m"]
    assert (model.stable, len(model.arms)) == (stable, num_arms)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("{}", "version"),
        ("version: 2", "version"),
        ("version: 1\nmodel: {}", "models"),
        ("version: 1\nmodels: {m: {pin: {}}}", "models.m.pin"),
        ("version: 1\nmodels: {m: {pin: {version: 0}}}", "models.m.pin.version"),
        ("version: 1\nmodels: {m: {pin: {variant: int9}}}", "models.m.pin.variant"),
        ("version: 1\nmodels: {m-int8: {pin: {version: 1}}}", "models"),
        ("version: 1\nmodels: {m: {pin: {version: 1}, split: {a: {version: 2, weight: 1}}}}", "models.m.split"),
        ("version: 1\nmodels: {m: {split: {a: {version: 2, weight: 0}}}}", "models.m.split"),
        ("version: 1\nmodels: {m: {split: {a: {version: 2, weight: -1}}}}", "models.m.split.a.weight"),
        ("version: 1\nmodels: {m: {split: {a: {version: 2}}}}", "models.m.split.a"),
        ("version: 1\nmodels: {m: {sticky_by: cookie}}", "models.m.sticky_by"),
        ("version: 1\nmodels: {m: {rollout: {candidate: {version: 2}, step: canary}}}", "models.m.rollout"),
        (
            "version: 1\nmodels: {m: {pin: {version: 2}, rollout: {candidate: {version: 2}, step: canary}}}",
            "models.m.rollout.candidate",
        ),
        (
            "version: 1\nmodels: {m: {may_mix: false, pin: {version: 1}, rollout: {candidate: {version: 2}, step: canary}}}",
            "models.m.may_mix",
        ),
        (
            "version: 1\nmodels: {m: {may_mix: false, split: {a: {version: 1, weight: 1}, b: {version: 2, weight: 1}}}}",
            "models.m.may_mix",
        ),
        ("version: 1\nmodels: {m: {weight: 0}}", "models.m.weight"),
        ("version: 1\nmodels: {m: {reserved_ratio: 0.6}, n: {reserved_ratio: 0.5}}", "models"),
        ("version: 1\ntenants: {(rollout): {weight: 2}}", "tenants.(rollout)"),
        ("version: 1\ntenants: {a: {weight: 0}}", "tenants.a.weight"),
        ("version: 1\ntenants: {a: {reserved_ratio: 0.6}, b: {reserved_ratio: 0.5}}", "tenants"),
        ("version: 1\ntenants: {a: {quotas: {requests: {per: day, limit: 1}}}}", "tenants.a.quotas.requests.per"),
        (
            "version: 1\ntenants: {a: {quotas: {requests: {per: second, limit: 0.5}}}}",
            "tenants.a.quotas.requests",
        ),
        ("version: 1\ntenants: {a: {quotas: {request: {per: hour, limit: 1}}}}", "tenants.a.quotas"),
        ("version: true", "line 1: version"),
        ("version: 1\nmodels:\n  m: {weight: true}", "line 3: models.m.weight"),
        ("version: 1\nmodels: {m: {pin: {version: yes}}}", "models.m.pin.version"),
        ("version: 1\nmodels: {m: {split: {a: {version: 2, weight: on}}}}", "models.m.split.a.weight"),
        ("version: 1\ntenants: {a: {reserved_ratio: false}}", "tenants.a.reserved_ratio"),
        (
            "version: 1\ntenants: {a: {quotas: {requests: {per: hour, limit: true}}}}",
            "tenants.a.quotas.requests.limit",
        ),
        ('{"version": 1, "tenants": {"a": {"quotas": {"concurrent": false}}}}', "tenants.a.quotas.concurrent"),
    ],
)
def test_a_mistake_is_told_with_its_place(text: str, place: str) -> None:
    with pytest.raises(UserError) as error:
        parse(text, "control.yaml")
    assert str(error.value).startswith("control.yaml")
    assert place in str(error.value)


def test_tandem_yaml_sends_to_the_control_document_what_it_alone_reads() -> None:
    names = {*Control.model_fields, *ModelControl.model_fields, *TenantControl.model_fields}
    own = {*GatewaySettings.model_fields, *ModelSettings.model_fields}
    assert set(IN_CONTROL) == names - own
