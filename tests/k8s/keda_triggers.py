"""What is wrong with a trigger of KEDA's? Its definition takes any type and any keys, and KEDA itself ignores a misspelt optional one.

The keys are those of the scaler that the chart uses, out of KEDA's documentation and the source of 2.20.2; tests/cluster/test_k8s_objects.py
compares them with that source. An external scaler gets all others, too: which ones ours reads is in serving/cluster/scaler/keda.py.
Authentication is not here: we use none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from serving.cluster.scaler.keda import POOL

from .conftest import Object


@dataclass(frozen=True, slots=True)
class Keys:
    required: frozenset[str]
    optional: frozenset[str]

    @property
    def known(self) -> frozenset[str]:
        return self.required | self.optional


OURS = frozenset({POOL})  # what our own scaler asks for
EXTERNAL_PUSH = Keys(required=frozenset({"scalerAddress"}) | OURS, optional=frozenset({"enableTLS", "unsafeSsl"}))
SCALERS = {"external-push": EXTERNAL_PUSH}
SWITCHES = {"enableTLS", "unsafeSsl"}


def mistakes(trigger: Object) -> Iterator[str]:
    keys = SCALERS.get(trigger["type"])
    if keys is None:
        yield f"{trigger['type']} is no scaler of {', '.join(SCALERS)}"
        return
    metadata = trigger["metadata"]
    for key in sorted(metadata.keys() - keys.known):
        near = get_close_matches(key, keys.known, 1)
        yield f"{key} is unknown" + (f"; did you mean {near[0]}?" if near else "")
    for key in sorted(keys.required - metadata.keys()):
        yield f"{key} is missing"
    for key, value in sorted(metadata.items()):
        if not isinstance(value, str):
            yield f"{key} is no text"
        elif key in SWITCHES and value not in ("true", "false"):
            yield f"{key} is neither true nor false"
