"""Follows the control document while the gateway runs: which revision is in force here, and whether it is the one of the source.

A thread asks the store (`control/stores.py`), reads what is new, and hands it to the event loop, where it is put in force whole or not at
all. Rule: a source that is away, and a document that is wrong, take nothing away: the last revision stays in force, and the log, the
status and the metric `tandem_control_current` say so. A gateway that begins starts from the newest kept revision by which every model that
is served here has an answer, once what the newest names had time to come.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from serving import errors
from serving.control.document import NO_CONTROL, Control, ModelControl, parse
from serving.control.edits import NO_DOCUMENT, Change, with_step
from serving.control.followers import Follower, waits_for
from serving.control.revisions import NOTHING, Revision
from serving.control.stores import EVERY_S, Conflict, Store
from serving.errors import EnvironmentFault, TandemError, UserError

LEAST_S = 0.1  # between two announcements
LAST_S = 1.0  # for the last one: a gateway that ends is not to keep anybody waiting
START_S = 3.0  # for what the first revision names to be seen; a Triton that serves is, within a second; a guess
LONGEST_WAIT_S = 30.0  # between two attempts to write what was decided here; a guess

log = logging.getLogger("tandem")


class ControlWatch:
    """Asks once at once. `control` None: it was never read, and nobody can say what is wanted.

    Raises UserError for a document that is wrong.
    """

    def __init__(self, store: Store, name: str = "") -> None:
        """`name`: by which this gateway announces itself; empty: it does not."""
        self.store = store
        self.lacks: Mapping[str, str] = {}  # model -> what of its candidate is not there that would have to be
        self._name = name
        self._is_news = threading.Event()  # to be announced at once
        self._announcing: threading.Thread | None = None
        self._asked: Revision | None = None  # that the store gave last
        self._problem = ""
        self._is_stopped = threading.Event()
        self._on_change: Callable[[], None] = lambda: None
        self._prepare: Callable[[Control], None] = lambda _: None
        self._require: Callable[[Control], None] = lambda _: None
        self._require_answers: Callable[[Control], None] = lambda _: None
        self.unanswered: Callable[[], Mapping[str, str]] = (
            dict  # model -> what is to answer it, which nothing serves now
        )
        self._is_first = False  # what is in force was put in force before anybody knew what is served
        self._lacks_since: float | None = None  # by the monotonic clock: a model has had no answer by it
        self._is_settled = False  # whether it was looked for an earlier one in its place
        self._earlier: Sequence[tuple[Revision, Control]] | None = None  # the newest first
        self._waiting: tuple[Revision, Control] | None = (
            None  # not in force, because what it names is not served here yet
        )
        self.decided_here: dict[str, str] = {}  # model -> step of its rollout, which is not in the document yet
        self._document = NO_CONTROL  # in force, without these steps
        self.control: Control | None = None
        self.revision = NOTHING
        self._since = 0.0
        try:
            found = store.current()
        except EnvironmentFault as error:
            self._say(f"{error}. Nothing is served before it was read once")
        else:
            self._asked = found
            self._put_in_force(found or NOTHING, self._read(found))

    @property
    def is_current(self) -> bool:
        """Whether what is in force is what the source has now, as far as it was asked."""
        return not self._problem

    @property
    def is_informed(self) -> bool:
        """Whether it was read once, and it is decided from which revision this gateway starts."""
        return self.control is not None and (self._lacks_since is None or self._is_settled)

    def start(
        self,
        on_change: Callable[[], None],
        require: Callable[[Control], None],
        require_answers: Callable[[Control], None] = lambda _: None,
        prepare: Callable[[Control], None] = lambda _: None,
    ) -> None:
        """`on_change` is called on this event loop, after `prepare` was on a thread with what is read. `require` raises UserError for a
        document that cannot be in force here now, `require_answers` for one by which a model that is served here would have no answer.
        """
        self._on_change, self._require, self._require_answers = on_change, require, require_answers
        self._prepare = prepare
        arguments = (asyncio.get_running_loop(),)
        threading.Thread(target=self._run, args=arguments, name="control", daemon=True).start()
        if self._name:
            self._announcing = threading.Thread(target=self._announce, name="control-announce", daemon=True)
            self._announcing.start()

    def stop(self) -> None:
        self._is_stopped.set()
        self._is_news.set()
        if self._announcing is not None:
            self._announcing.join(LAST_S)

    def tell_lacks(self, lacks: Mapping[str, str]) -> None:
        """Of candidates, to others, too."""
        if lacks != self.lacks:
            self.lacks = lacks
            self._is_news.set()

    def try_again(self) -> None:
        """What is served is another than before."""
        if self._is_first:
            try:
                self._require_answers(self._document)
            except UserError:
                self._lacks_since = self._lacks_since or time.monotonic()
                self._waiting = self._waiting or (self.revision, self._document)
            else:
                self._lacks_since = None
        if self._waiting is not None:
            self._put_in_force(*self._waiting)

    def change(self, model: str, step: str, why: str) -> None:
        """Puts another step of a model's rollout in the document, for everybody. A rollback is in force here at once.

        Where the document cannot be written that is tried again, and it holds here until the document has something else of the model;
        another share of servers is no such thing. Nothing is promoted here alone: gateways would answer by two versions. An empty step
        takes back what was decided and waits.
        """
        if self.control is None:
            return
        log.warning("%s", why)
        if not step:
            self.decided_here.pop(model, None)
            return
        self.decided_here[model] = step
        self.control = _in_steps(self._document, self.decided_here)
        self._on_change()
        arguments = (model, step, why, self._document.answering(model))
        threading.Thread(target=self._write, args=arguments, name="control-change", daemon=True).start()

    def edit(self, change: Change, by: str) -> Revision:
        """Puts what somebody wants of a model in the document. On a thread. Raises Conflict, UserError and EnvironmentFault."""
        before = self.store.history()
        if before.current.name != change.revision:
            raise errors.Conflict(f"revision {before.current.name} is in force by now; look at it, and try again")
        text = change.text(before)
        old, of = (
            parse(it or NO_DOCUMENT, self.store.name).models.get(change.model) for it in (before.current.text, text)
        )
        if of is not None:
            try:
                self._require(Control(version=1, models={change.model: of}))
            except UserError as error:  # no gateway would have it in force, and whatever comes after it would wait, too
                raise errors.Conflict(f"nothing was changed: {error}") from None
        is_moved = of is not None and (old is None or of.stable != old.stable)
        try:
            if change.step == "promote":
                self._require_all(change.model, of, before.current)
            elif change.pin is not None and is_moved and of is not None and not of.may_mix:
                self._require_current(before.current)
        except EnvironmentFault as error:
            raise errors.Conflict(f"nothing was changed: {error}") from None
        following = before.then(text, at=_now(), by=by, why=change.why)
        try:
            self.store.write(following, before)
        except Conflict as error:
            raise errors.Conflict(str(error)) from None
        return following.current

    def _write(self, model: str, step: str, why: str, of: ModelControl | None) -> None:
        """`of`: what the document had of the model when that was decided."""
        wait_s = EVERY_S
        while not self._is_stopped.is_set() and self.decided_here.get(model) == step:
            try:
                before = self.store.history()
                # An empty text is one that an editor is writing now, or one that is gone: neither decides anything.
                if parse(before.current.text, self.store.name).answering(model) != of:
                    return  # somebody has decided something since
                if step == "promote":
                    self._require_all(model, of, before.current)
                text = with_step(before.current.text, model, step)
                if self.decided_here.get(model) != step:
                    return  # a promotion that waited is a rollback by now
                self.store.write(before.then(text, at=_now(), by=f"gateway on {socket.gethostname()}", why=why), before)
            except TandemError as error:
                if wait_s == EVERY_S:
                    log.warning("%s of %s is not in the document yet, and is tried again: %s", step, model, error)
            except Exception:
                log.exception("putting %s of %s in the document failed by a mistake of the gateway's own", step, model)
            else:
                return
            self._is_stopped.wait(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    def _require_all(self, model: str, of: ModelControl | None, current: Revision) -> None:
        """Raises EnvironmentFault where a candidate cannot take over now, at any gateway."""
        followers = self.store.followers()
        lacks = next((f"the gateway {it.name}: {it.lacks[model]}" for it in followers if model in it.lacks), "")
        if lacks or model in self.lacks:
            raise EnvironmentFault(lacks or self.lacks[model])
        if of is not None and not of.may_mix:
            self._require_current(current)

    def _require_current(self, current: Revision) -> None:
        """Raises EnvironmentFault where not every gateway has it in force."""
        if problem := waits_for(self.store.followers(), current.digest):
            raise EnvironmentFault(problem)

    def _announce(self) -> None:
        """On a thread of its own, because a store may be slow to be followed."""
        problem = ""
        while not self._is_stopped.is_set():
            self._is_news.clear()
            digest, number = ("", 0) if self.control is None else (self.revision.digest, self.revision.number)
            every_s = self.store.announce_s
            try:
                self.store.announce(Follower(self._name, digest, number, self._problem, dict(self.lacks), every_s))
                problem = ""
            except TandemError as error:
                if not problem:
                    log.warning("others are not told which revision is in force here: %s", error)
                problem = str(error)
            except Exception:
                log.exception("announcing this gateway failed by a mistake of its own")
            self._is_news.wait(every_s)
            self._is_stopped.wait(LEAST_S)
        with contextlib.suppress(TandemError):
            self.store.withdraw(self._name)

    def told(self) -> dict[str, Any]:
        """For `/admin/status`."""
        revision = self.revision
        return {
            "source": self.store.name,
            "is_current": self.is_current,
            "problem": self._problem or None,
            "decided_here": dict(self.decided_here),
            "lacks": dict(self.lacks),
            "unanswered": dict(self.unanswered()),
            "models": {
                name: [
                    {"arm": arm, "version": it.version, "variant": it.variant, "ratio": ratio}
                    for arm, it, ratio in model.shares
                ]
                for name, model in (self.control or NO_CONTROL).models.items()
            },
            "revision": None
            if self.control is None
            else {
                "number": revision.number,
                "digest": f"sha256:{revision.digest}",
                "applied": revision.at or None,
                "by": revision.by,
                "why": revision.why or None,
                "since": datetime.fromtimestamp(self._since, UTC).isoformat(timespec="milliseconds"),
            },
        }

    # -- on the thread ------------------------------------------------------------------------------------------------

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        def hand_over(work: Callable[[], None]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(work)

        with self.store:
            while not self._is_stopped.is_set():
                try:
                    self._look_back(hand_over)
                    self._look(hand_over)
                except TandemError as error:
                    hand_over(partial(self._say, str(error)))
                    self._is_stopped.wait(EVERY_S)
                except Exception as error:
                    hand_over(partial(self._say, f"following {self.store.name} failed by a mistake: {error!r}", error))
                    self._is_stopped.wait(EVERY_S)

    def _look_back(self, hand_over: Callable[[Callable[[], None]], None]) -> None:
        since = self._lacks_since
        if since is None or time.monotonic() - since < START_S:
            return
        if self._earlier is None:
            with contextlib.suppress(TandemError):  # what is away is asked again
                self._earlier = list(self._read_earlier(self.revision.number))
        earlier = self._earlier or ()
        hand_over(lambda: self._start_from(earlier))

    def _read_earlier(self, number: int) -> Iterator[tuple[Revision, Control]]:
        for revision in reversed(self.store.history().revisions):
            if revision.number < number:
                with contextlib.suppress(UserError):  # one with a mistake was in force nowhere
                    yield revision, parse(revision.text, self.store.name)

    def _look(self, hand_over: Callable[[Callable[[], None]], None]) -> None:
        try:
            found = self.store.following(self._asked)
            if found is None and self.revision.number:
                raise EnvironmentFault(f"{self.store.name} is not there any more")
        except TandemError:
            self._asked = None  # what is wrong with a document is told anew once there is one again
            raise
        if found is not None and found == self._asked and self.control is not None:
            if found == self.revision:
                hand_over(self._say_current)
            return
        self._asked = found
        control = self._read(found)
        self._prepare(control)
        hand_over(lambda: self._put_in_force(found or NOTHING, control))

    def _read(self, found: Revision | None) -> Control:
        return NO_CONTROL if found is None else parse(found.text, self.store.name)

    # -- on the event loop --------------------------------------------------------------------------------------------

    def _put_in_force(self, revision: Revision, control: Control) -> None:
        before = self.revision
        is_new = self.control is None or (revision.name, revision.origin) != (before.name, before.origin)
        self._waiting = None
        if (is_new or self._is_first) and self.control is not None:
            try:
                (self._require if is_new else self._require_answers)(control)
            except UserError as error:
                self._waiting = revision, control
                why = "cannot be in force yet" if is_new else "leaves a model without an answer"
                self._say(f"revision {revision.name} of {self.store.name} {why}: {error}")
                return
        old, self._document = self._document, control
        self.decided_here = {
            model: it
            for model, it in self.decided_here.items()
            if control.answering(model) == old.answering(model) and revision.origin == before.origin
        }
        if is_new:
            self._is_first, self._lacks_since = self.control is None, None
        self.revision, self.control = revision, _in_steps(control, self.decided_here)
        if revision == (self._asked or NOTHING):  # otherwise the source has another one by now, which may be wrong
            if not is_new:
                self._say_current()
            self._problem = ""
        if is_new:
            self._since = time.time()
            self._is_news.set()
            log.warning("revision %s of %s is in force", revision.name, self.store.name)
            self._on_change()
            if self._is_first:
                self.try_again()

    def _start_from(self, earlier: Sequence[tuple[Revision, Control]]) -> None:
        """Goes by the first of these by which all can be answered, and on waiting for the newest.

        By none in which a model that must not mix has another answer: elsewhere the newest may be in force.
        """
        self._is_settled = True
        if self._lacks_since is None or self._waiting is None:
            return
        waiting = self._waiting
        for revision, control in earlier:
            try:
                self._require(control)
            except UserError:
                continue
            if any(_would_mix(control, later) for later in (self._document, waiting[1])):
                continue
            self._put_in_force(revision, control)
            self._put_in_force(*waiting)
            return

    def _say_current(self) -> None:
        if self._waiting is not None:
            return
        if self._problem:
            log.warning("%s is read again; revision %s is in force", self.store.name, self.revision.name)
        self._problem = ""

    def _say(self, problem: str, mistake: Exception | None = None) -> None:
        """`mistake`: of the gateway's own."""
        if problem != self._problem:
            self._problem = problem
            self._is_news.set()
            is_kept = self.control is not None and (self._waiting is None or self._waiting[0] != self.revision)
            kept = "" if not is_kept else f". Revision {self.revision.name} stays in force"
            log.warning("%s%s", problem, kept, exc_info=mistake)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _would_mix(one: Control, other: Control) -> bool:
    """Whether a model that must not mix would be answered by two versions, where some gateways go by the one and some by the other."""
    for name in one.models.keys() | other.models.keys():
        of = [it for control in (one, other) if (it := control.models.get(name)) is not None]
        if any(not it.may_mix for it in of) and (len(of) < 2 or of[0].stable != of[1].stable):
            return True
    return False


def _in_steps(control: Control, steps: Mapping[str, str]) -> Control:
    models = dict(control.models)
    for model, step in steps.items():
        of = models.get(model)
        if of is not None and of.rollout is not None and step != "promote":
            rollout = of.rollout.model_copy(update={"step": step})
            models[model] = of.model_copy(update={"rollout": rollout})
    return control.model_copy(update={"models": models}) if steps else control
