"""What can stop a campaign, with the exit code that `tandem` gives it.

The classes mirror `serving/errors.py` and stay apart from it, because this room talks to a gateway by HTTP only. A message is one line
that says what happened and the way out.
"""

from __future__ import annotations


class CampaignError(Exception):
    """The root; its message is one line."""

    exit_code = 2


class CampaignFileError(CampaignError):
    """The campaign file is wrong: names the file, the line and, for an unknown key, the nearest known one."""


class ResultsError(CampaignError):
    """A results directory that cannot be reported on."""


class TargetError(CampaignError):
    """No gateway answers, or the one started here did not become ready."""

    exit_code = 3


class PayloadError(CampaignError, ValueError):
    """What is to be sent does not fit the model, or cannot be made. Its message ends without a full stop."""


class CannotMeasure(Exception):
    """Something that a measurement needs is missing; one line says what, and the way out. Exit code 3."""
