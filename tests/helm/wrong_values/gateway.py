"""Contradictions in what is said of the gateway, keys and the ways to it."""

from __future__ import annotations

from tests.helm.conftest import Object

# (values, the whole sentence)
CONTRADICTIONS: dict[str, tuple[Object, str]] = {
    "no word about missing keys": (
        {"auth": {"insecureNoAuth": False}},
        "There are no API keys, so whoever reaches the gateway could use it. Put the file that `tandem keys` writes into a secret "
        "and set auth.existingSecret to its name, or set auth.insecureNoAuth=true to do without.",
    ),
    "keys, and none": (
        {"auth": {"existingSecret": "keys"}},
        "auth.existingSecret and auth.insecureNoAuth contradict each other. Leave one of them out.",
    ),
    "a gateway that is killed while it drains": (
        {"gateway": {"terminationGracePeriodSeconds": 30}},
        "gateway.terminationGracePeriodSeconds is 30, but its drain takes 40 s (5 before SIGTERM, 30 to finish, 5 margin), "
        "so requests would be cut off. Raise it to 40, shorten the drain, or leave it unset.",
    ),
    "a gateway without an account": (
        {"gateway": {"serviceAccount": {"create": False}}},
        "gateway.serviceAccount.create is false and no name is given. Set gateway.serviceAccount.name to an account that exists.",
    ),
    "a variant on a pool that is off": (
        {"gateway": {"variants": {"digits": {"gpu": "fp16"}}}},
        "gateway.variants.digits names pool gpu, which is not on. Pools that are on: cpu.",
    ),
}
