"""Changes a part of a control document: a model's pin, or its way back. Comments of the text are not kept; nothing else is changed."""

from __future__ import annotations

from typing import Any, Literal

import yaml
from pydantic import Field, model_validator

from serving.control.document import Target, parse, read
from serving.control.revisions import History
from serving.errors import UserError
from serving.settings import Strict

NO_DOCUMENT = "version: 1\n"


class Change(Strict):
    """What somebody at a page wants of a model: one of a pin, a step of its rollout, and its way back."""

    model: str = Field(description="Its public name.")
    revision: str = Field(
        description="The revision that was before their eyes, as `7-4f1d2c3b9a0e`; 409 where it is another by now."
    )
    pin: Target | None = Field(default=None, description="All requests go there.")
    step: Literal["shadow", "canary", "promote", "rollback"] | None = Field(
        default=None, description="Of the rollout that the document has."
    )
    is_rollback: bool = Field(default=False, description="Back to what answered before, as `tandem models rollback`.")

    @model_validator(mode="after")
    def _one(self) -> Change:
        if [self.pin is not None, self.step is not None, self.is_rollback].count(True) != 1:
            raise ValueError("one of pin, step and is_rollback says what is wanted")
        if self.pin is not None and self.pin.version is None and self.pin.variant is None:
            raise ValueError("pin names neither a version nor a variant")
        return self

    @property
    def why(self) -> str:
        if self.pin is not None:
            return f"{self.model} pinned to {self.pin}"
        return f"{self.model} rolled back" if self.is_rollback else f"rollout of {self.model}: {self.step}"

    def text(self, before: History) -> str:
        """The document with it. Raises UserError."""
        text = before.current.text or NO_DOCUMENT
        if self.pin is not None:
            return with_pin(text, self.model, self.pin)
        if self.is_rollback:
            return rolled_back(before, self.model)
        now = parse(text, "the revision in force").models.get(self.model)
        if now is None or now.rollout is None:
            raise UserError(f"the document has no rollout of '{self.model}'")
        return with_step(text, self.model, str(self.step))


def with_pin(text: str, model: str, target: Target) -> str:
    """All requests to the model go to `target`; a split and a rollout of it are over."""
    data = _data(text)
    it = data.setdefault("models", {}).setdefault(model, {})
    it["pin"] = target.model_dump(exclude_none=True)
    it.pop("split", None)
    it.pop("rollout", None)
    return _text(data)


def with_step(text: str, model: str, step: str) -> str:
    """The model's rollout in another step."""
    data = _data(text)
    data["models"][model]["rollout"]["step"] = step
    return _text(data)


def rolled_back(history: History, model: str) -> str:
    """The document in force, in which the model answers as before: a rollout that goes on is taken back, else an earlier pin returns.

    Never that of a candidate that was taken back, so that whoever asks twice does not get it after all.

    Raises UserError where nothing is known that was before.
    """
    text = history.current.text or NO_DOCUMENT
    now = parse(text, "the revision in force").models.get(model)
    if now is not None and now.rollout is not None and now.rollout.step != "rollback":
        return with_step(text, model, "rollback")
    for revision in reversed(history.revisions[:-1]):
        try:
            before = parse(revision.text, f"revision {revision.number}").models.get(model)
        except UserError:
            continue  # an editor's mistake, which was never in force
        target = None if before is None else before.stable
        is_candidate = now is not None and now.rollout is not None and target == now.rollout.candidate
        if target is not None and not is_candidate and (now is None or target != now.stable):
            return with_pin(text, model, target)
    raise UserError(
        f"no revision that is kept pins '{model}' to anything else; name it with `tandem models pin {model}`"
    )


def _data(text: str) -> dict[str, Any]:
    """Of a document that was read strictly before."""
    parse(text or NO_DOCUMENT, "the revision in force")
    data: dict[str, Any] = _each_its_own(read(text or NO_DOCUMENT, "the revision in force").data)
    return data


def _each_its_own(it: Any) -> Any:
    """What aliases share is one object: a change of one model would be one of others, too."""
    if isinstance(it, dict):
        return {key: _each_its_own(value) for key, value in it.items()}
    return [_each_its_own(value) for value in it] if isinstance(it, list) else it


def _text(data: dict[str, Any]) -> str:
    return yaml.safe_dump(data, sort_keys=False)
