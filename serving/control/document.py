"""What may stand in a control document, and whether one makes sense by itself.

Desired state of models and tenants that changes while gateways run; what stays is tandem.yaml's (`settings.py`). Rule: reading is strict
and needs nothing but the text, so that whoever applies a document hears the same as every gateway does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from serving.documents.nearest import nearest
from serving.documents.reader import Document, parse_document
from serving.errors import UserError
from serving.keys.key_file import check_name
from serving.repository import PRECISIONS, check_model_name
from serving.settings import Strict


def _model(name: str) -> str:
    try:
        return check_model_name(name)
    except UserError as error:
        raise ValueError(str(error)) from None


def _variant(name: str) -> str:
    if name not in PRECISIONS:
        raise ValueError(f"no variant '{name}'{nearest(name, PRECISIONS)}")
    return name


def _sticky(text: str) -> str:
    kind, _, name = text.partition(":")
    if text not in ("key", "none") and (kind != "header" or not name or not name.replace("-", "").isalnum()):
        raise ValueError(f"'{text}' is none of key, none and header:NAME")
    return text.lower()


class Share(Strict):
    """What is had of servers' time where more is wanted than there is."""

    weight: float = Field(
        default=1.0,
        ge=0.001,
        le=10_000,
        description="Its share of servers' time, beside the weights of others, where they are asked for more than they can do.",
    )
    reserved_ratio: float = Field(
        default=0.0, ge=0, le=1, description="Part of servers' time that is its own whatever others' weights are."
    )


class Target(Strict):
    """What of a model answers."""

    version: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Its version. Unset: the newest that is served."
    )
    variant: Annotated[str, AfterValidator(_variant)] | None = Field(
        default=None, description="Its variant, as `fp32` or `int8`. Unset: the one that the public name means."
    )

    def __str__(self) -> str:
        version = [] if self.version is None else [f"version {self.version}"]
        return " as ".join([*version, *([self.variant] if self.variant else [])]) or "newest version"


class Arm(Target):
    """One of several that share a model's requests."""

    weight: float = Field(
        ge=0,
        allow_inf_nan=False,
        description="Its share of the requests, beside the weights of the others, whatever they add up to.",
    )


class RolloutSettings(Strict):
    """A candidate that is to follow what `pin` names, step by step."""

    candidate: Target = Field(description="What is to be pinned in the end.")
    step: Literal["shadow", "canary", "promote", "rollback"] = Field(
        description="`shadow`: the pinned one answers, and a sample is also answered by the candidate with capacity that is idle, for "
        "comparison. `canary`: the candidate answers `canary_ratio` of the requests. `promote`: all. `rollback`: none."
    )
    sample_ratio: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="Share of the requests whose answers are compared.",
    )
    canary_ratio: float = Field(
        default=0.05, gt=0, lt=1, description="Share of the requests that the candidate answers as a canary."
    )
    max_loss: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="How far the candidate's answers may be from the pinned one's in the mean, of 1, as the gate of the model's task "
        "measures it: of classes the share that differs. Unset: 0.005 of decisions and of vectors, 0.05 of numbers; a model that was "
        "trained anew differs by more.",
    )
    max_cost_ratio: float | None = Field(
        default=None,
        gt=1,
        allow_inf_nan=False,
        description="How much the candidate may cost, as a multiple of the pinned one: in seconds of servers for a row, at the prices of "
        "their pools. Unset: 1.05. It is judged of a canary, where Triton tells what executions took.",
    )
    rolls_back: bool = Field(
        default=True,
        description="Whether a candidate that is proven worse is rolled back at once, by the gateway that proved it.",
    )
    promotes: bool = Field(
        default=False,
        description="Whether a canary that is proven to be within all limits is promoted, by the gateway that proved it. Of a model that "
        "may not mix, which has no canary, the shadow.",
    )


class ModelControl(Share):
    """What of a model answers its public name, and its share of the servers that it has together with other models."""

    pin: Target | None = Field(default=None, description="All requests to the public name go here.")
    split: dict[str, Arm] = Field(
        default_factory=dict,
        description="Name of an arm -> what it is and its weight, in place of `pin`. Requests of one caller stay with an arm, and those of "
        "the first arm stay there while its weight grows.",
    )
    sticky_by: Annotated[str, AfterValidator(_sticky)] = Field(
        default="key",
        description="Who stays with an arm: `key`, the name of the API key (without keys each request is another); `header:NAME`, the "
        "value of a header where it is sent; `none`.",
    )
    may_mix: bool = Field(
        default=True,
        description="Whether versions may answer beside each other. Where they may not, a split and a canary are refused, and `tandem "
        "apply` changes the pin only while every gateway that follows the source has its document.",
    )
    rollout: RolloutSettings | None = Field(default=None, description="From `pin` to a candidate. Unset: none.")

    @property
    def answering(self) -> ModelControl:
        """The same without its share, which decides nothing about what answers."""
        return self.model_copy(update={name: field.default for name, field in Share.model_fields.items()})

    @property
    def stable(self) -> Target | None:
        """What all requests to the public name go to; None: what it means without a document, or arms."""
        if self.rollout is not None and self.rollout.step == "promote":
            return self.rollout.candidate
        return self.pin

    @property
    def arms(self) -> Mapping[str, Arm]:
        """Those that share the requests, the growing one first; none where all go to one."""
        rollout = self.rollout
        if rollout is None or rollout.step != "canary" or self.pin is None:
            return {name: arm for name, arm in self.split.items() if arm.weight > 0}
        ratio = rollout.canary_ratio
        return {
            "canary": Arm(**rollout.candidate.model_dump(), weight=ratio),
            "stable": Arm(**self.pin.model_dump(), weight=1 - ratio),
        }

    @property
    def targets(self) -> list[Target]:
        """That may answer the public name: arms, and what takes the requests where none of them can. Empty: the document leaves it open."""
        return [*self.arms.values(), *([] if self.stable is None else [self.stable])]

    @property
    def shares(self) -> list[tuple[str, Target, float]]:
        """(arm, what it is, its part of the requests in 0..1), the greatest first; a shadow has 0. Empty: the document leaves it open."""
        total = sum(arm.weight for arm in self.arms.values())
        found: list[tuple[str, Target, float]] = [(name, arm, arm.weight / total) for name, arm in self.arms.items()]
        if not found and self.stable is not None:
            found = [("pinned", self.stable, 1.0)]
        if self.rollout is not None and self.rollout.step == "shadow":
            found.append(("shadow", self.rollout.candidate, 0.0))
        return sorted(found, key=lambda it: -it[2])


class RateQuota(Strict):
    """So much in a second, an hour or a month."""

    per: Literal["second", "hour", "month"] = Field(
        description="`second`, `hour` or `month`, in UTC: the count begins anew with each."
    )
    limit: float = Field(ge=0, allow_inf_nan=False, description="Most of it in that time.")


class TenantQuotas(Strict):
    """What a tenant may use at most; what is unset is not limited."""

    requests: RateQuota | None = Field(default=None, description="Inference requests, a whole number.")
    device_s: RateQuota | None = Field(default=None, description="Seconds of servers, as they were used.")
    dollars: RateQuota | None = Field(default=None, description="Price of those seconds, by `price_per_hour` of pools.")
    tokens: RateQuota | None = Field(default=None, description="Tokens of texts.")
    bytes: RateQuota | None = Field(default=None, description="Bytes of requests' bodies.")
    concurrent: int | None = Field(default=None, ge=0, description="Requests at once.")

    @field_validator("requests")
    @classmethod
    def _whole(cls, quota: RateQuota | None) -> RateQuota | None:
        if quota is not None and quota.limit % 1:
            raise ValueError(f"a limit of {quota.limit:g} is no number of requests; take a whole one, of a longer time")
        return quota


class TenantControl(Share):
    """Whoever shares the servers with others; keys belong to it by their file."""

    quotas: TenantQuotas = Field(default_factory=TenantQuotas, description="What it may use at most.")


class Control(Strict):
    """A control document."""

    version: Literal[1] = Field(description="Version of this format.")
    models: dict[Annotated[str, AfterValidator(_model)], ModelControl] = Field(
        default_factory=dict, description="Public model name -> what answers it."
    )
    tenants: dict[str, TenantControl] = Field(default_factory=dict, description="Name -> tenant.")

    def answering(self, model: str) -> ModelControl | None:
        """What it says of a model, without its share."""
        of = self.models.get(model)
        return None if of is None else of.answering


def target_of(version: int | None, variant: str | None) -> Target:
    """Raises UserError."""
    try:
        return Target(version=version, variant=variant)
    except ValueError:
        raise UserError(f"no variant '{variant}'{nearest(variant or '', PRECISIONS)}") from None


NO_CONTROL = Control(version=1)


def read(text: str, where: str) -> Document:
    """Unchecked. The text alone says whether it is JSON: it is applied from a file of one name and kept in one of another."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return parse_document(text, where, is_json=False)
    return parse_document(text, where, is_json=True)


def parse(text: str, where: str) -> Control:
    """`where` the text is from, for messages. Raises UserError with the line, the place and the nearest known name."""
    document = read(text, where)
    control = document.values(Control, strict=False)
    for name, model in control.models.items():
        _check_model(document, name, model)
    for name in control.tenants:
        try:
            check_name(name, "a tenant's name")
        except UserError as error:
            raise document.wrong(("tenants", name), str(error)) from None
    each: Mapping[str, Iterable[Share]] = {"models": control.models.values(), "tenants": control.tenants.values()}
    for place, shares in each.items():
        reserved = sum(share.reserved_ratio for share in shares)
        if reserved > 1 + 1e-9:
            raise document.wrong((place,), f"their reserved_ratio add up to {reserved:g}, more than the whole of 1")
    return control


def _check_model(document: Document, name: str, model: ModelControl) -> None:
    place = ("models", name)
    if model.pin is not None and model.split:
        raise document.wrong((*place, "split"), "the model has a pin, to which all requests go; leave one of them out")
    if model.split and not any(arm.weight for arm in model.split.values()):
        raise document.wrong((*place, "split"), "every weight is 0; give one arm more")
    targets: dict[tuple[str, ...], Target | None] = {("pin",): model.pin}
    targets |= {("split", arm): it for arm, it in model.split.items()}
    if model.rollout is not None:
        targets["rollout", "candidate"] = model.rollout.candidate
    for at, target in targets.items():
        if target is not None and target.version is None and target.variant is None:
            raise document.wrong((*place, *at), "it names neither a version nor a variant")
    if model.rollout is not None:
        if model.pin is None:
            raise document.wrong(
                (*place, "rollout"), "it begins with what is pinned, so that the candidate gets nothing yet; add `pin`"
            )
        if model.pin == model.rollout.candidate:
            raise document.wrong((*place, "rollout", "candidate"), f"it is what is pinned already ({model.pin})")
    if not model.may_mix and len(model.arms) > 1:
        raise document.wrong(
            (*place, "may_mix"), f"{' and '.join(model.arms)} would answer beside each other; have one of them alone"
        )
