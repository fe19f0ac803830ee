"""Wrong values, each with what the chart says to them; laid over the one that an install always needs (conftest.accepted)."""

from tests.helm.wrong_values import gateway, models, pools, rest, scaler
from tests.helm.wrong_values.unknown import UNKNOWN_OR_WRONG

CONTRADICTIONS = {
    **gateway.CONTRADICTIONS,
    **models.CONTRADICTIONS,
    **pools.CONTRADICTIONS,
    **rest.CONTRADICTIONS,
    **scaler.CONTRADICTIONS,
}

__all__ = ["CONTRADICTIONS", "UNKNOWN_OR_WRONG"]
