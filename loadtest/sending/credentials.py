"""The API key that requests to a gateway carry, out of TANDEM_API_KEY; never on a command line, and in no file of results.

A key with scope `infer` is enough to send load; with `admin` and `metrics` too, the report has what the gateway knows.
"""

from __future__ import annotations

import os

from loadtest.errors import CampaignError

VARIABLE = "TANDEM_API_KEY"


def credentials() -> dict[str, str]:
    """Headers; none where there is no key. Raises CampaignError for a text that no header may hold."""
    key = os.environ.get(VARIABLE)
    if not key:
        return {}
    if not key.isascii() or not key.isprintable() or " " in key:
        raise CampaignError(f"{VARIABLE} holds what no API key is: blanks, line ends or letters beyond ASCII.")
    return {"Authorization": f"Bearer {key}"}
