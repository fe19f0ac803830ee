"""`tandem apply`, `diff`, `history`, `undo`: changes of the control document, which gateways follow while they run."""

from __future__ import annotations

import getpass
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from serving.cli.help import Verb
from serving.cli.lazy import repository_at, room
from serving.cli.options import FILE, JSON, MODEL_REPOSITORY
from serving.errors import EnvironmentFault, GateRefused, TandemError, UserError

PLACE = click.option(
    "--control",
    "place",
    metavar="PLACE",
    required=True,
    envvar="TANDEM_CONTROL",
    help="Where the document is: FILE, redis://HOST:PORT[/DATABASE][?key=NAME] or configmap:NAME.",
)
WHY = click.option("--why", default="", metavar="TEXT", help="What it is for, for the history.")
URLS = click.option(
    "--url",
    "urls",
    multiple=True,
    metavar="URL",
    help="A gateway that is to follow, by its admin listener; several times for several. With keys, TANDEM_API_KEY holds one for "
    "admin.",
)
GONE = click.option(
    "--gone",
    multiple=True,
    metavar="NAME",
    help="A gateway that has ended and could not say so, so that nobody waits for it; several times for several.",
)
WAIT_S = 10.0  # for gateways to follow, which takes them two seconds at most
LOOK_S = 0.1


def store_at(place: str) -> Any:
    """Raises TandemError."""
    stores = room("serving.control.stores")
    if place.startswith(stores.CONFIGMAP):
        return room("serving.cluster.control_map").ControlMap(place.removeprefix(stores.CONFIGMAP))
    return stores.store_at(place)


@click.command(cls=Verb)
@click.argument("file", type=FILE)
@PLACE
@WHY
@URLS
@GONE
@JSON
def apply(file: Path, place: str, why: str, urls: tuple[str, ...], gone: tuple[str, ...], as_json: bool) -> None:
    """Put the control document FILE in force: all gateways that follow PLACE go by it within two seconds, each whole or not at all.

    It is checked before anything is changed. With --url it returns once these gateways have it; exit code 1 if one has not after 10 s. If
    one is away, or follows no document, nothing is changed. A model with `may_mix: false` changes what answers it only if each of them
    follows the source now.
    """
    text = room("serving.documents.reader").read_text(file, "the control document")
    with store_at(place) as store:
        _change(store, lambda _: (text, str(file)), why or f"from {file.name}", urls, gone, as_json=as_json)


@click.command(cls=Verb)
@click.argument("number", type=click.IntRange(min=1), required=False)
@PLACE
@URLS
@GONE
@JSON
def undo(number: int | None, place: str, urls: tuple[str, ...], gone: tuple[str, ...], as_json: bool) -> None:
    """Put the revision before the one in force in force again, or revision NUMBER: as a new one, so that it can be undone, too."""
    with store_at(place) as store:
        before: list[int] = []

        def text(history: Any) -> tuple[str, str]:
            revision = history.before(number)
            before.append(revision.number)
            return revision.text, f"revision {revision.number}"

        _change(store, text, lambda: f"as revision {before[0]}", urls, gone, as_json=as_json)


@click.command(cls=Verb)
@click.argument("file", type=FILE)
@PLACE
@JSON
def diff(file: Path, place: str, as_json: bool) -> None:
    """Show what `tandem apply FILE` would change. Exit code 1 if that is anything, 2 if FILE is wrong."""
    text = room("serving.documents.reader").read_text(file, "the control document")
    room("serving.control.document").parse(text, str(file))
    with store_at(place) as store:
        current = store.history().current
    difference = room("serving.control.revisions").difference(current, text, str(file))
    click.echo(
        json.dumps({"version": 1, "from": _row(current), "diff": difference}) if as_json else difference, nl=as_json
    )
    sys.exit(1 if difference else 0)


@click.command(cls=Verb)
@PLACE
@JSON
def history(place: str, as_json: bool) -> None:
    """List the revisions that are kept, the one in force last."""
    with store_at(place) as store:
        revisions = store.history().revisions
    if as_json:
        click.echo(
            json.dumps({"version": 1, "revisions": [_row(it) | {"text": it.text} for it in revisions]}, indent=2)
        )
        return
    rows = [(str(it.number), it.digest[:12], it.at or "–", it.by, it.why or "–") for it in revisions]
    click.echo(
        room("serving.documents.tables").columns([("number", "digest", "applied", "by", "why"), *rows], align="><<<<")
    )


@click.command("pin", cls=Verb)
@click.argument("model")
@click.option(
    "--version", type=click.IntRange(min=1), help="The version that answers. Default: the newest that is served."
)
@click.option("--variant", help="The variant that answers, as int8. Default: the one that the name means on each pool.")
@PLACE
@URLS
@GONE
@MODEL_REPOSITORY
@JSON
def pin(
    model: str,
    version: int | None,
    variant: str | None,
    place: str,
    urls: tuple[str, ...],
    gone: tuple[str, ...],
    model_repository: Path | str | None,
    as_json: bool,
) -> None:
    """Have all requests to MODEL answered by a version, by a variant, or by both: a change of the control document.

    A split and a rollout of the model end with it. Comments of the document are not kept. A model or version that is not in the model
    repository is told on stderr, and pinned all the same: without --url no gateway is asked.
    """
    if version is None and variant is None:
        raise UserError("--version, --variant or both say what is to answer")
    target = room("serving.control.document").target_of(version, variant)
    edits = room("serving.control.edits")
    unknown = "" if urls else _unknown(repository_at(model_repository), model, version)
    with store_at(place) as store:
        changed = lambda history: (edits.with_pin(history.current.text, model, target), "the change")  # noqa: E731
        _change(store, changed, f"{model} pinned to {target}", urls, gone, as_json=as_json)
    if unknown:
        click.echo(f"tandem: {unknown} (pinned all the same, for where it is served)", err=True)


@click.command("rollback", cls=Verb)
@click.argument("model")
@PLACE
@URLS
@JSON
def rollback(model: str, place: str, urls: tuple[str, ...], as_json: bool) -> None:
    """Take MODEL back to what answered before: out of a rollout that goes on, else to what an earlier revision pinned.

    That waits for no gateway that is not named with --url.
    """
    edits = room("serving.control.edits")
    with store_at(place) as store:
        changed = lambda history: (edits.rolled_back(history, model), "the change")  # noqa: E731
        is_changed = _change(store, changed, f"{model} rolled back", urls, None, as_json=as_json)
    if is_changed and not as_json:
        click.echo(f"`tandem undo` would take this rollback back: {model} would answer as it did before it")


@click.command("rollout", cls=Verb)
@click.argument("model")
@click.option(
    "--url",
    metavar="URL",
    help="A gateway, by its admin listener. With keys, TANDEM_API_KEY holds one for admin. Default: the `tandem up` of this machine whose "
    "document has a rollout of MODEL.",
)
@click.option("--output", type=FILE, help="File to write the report to, as HTML.")
@JSON
def rollout(model: str, url: str | None, output: Path | None, as_json: bool) -> None:
    """Say what MODEL's candidate is judged to be and on what evidence, as a gateway saw it. Exit code 1 if it was rolled back."""
    runs = [it.run for it in room("serving.local.runs").found() if it.is_alive] if url is None else []
    if url is None and not runs:
        raise UserError("no `tandem up` runs on this machine; --url names a gateway elsewhere")
    told: dict[str, list[dict[str, Any]]] = {}
    problem: TandemError | None = None
    for place in [run.urls[0] for run in runs] if url is None else [url.rstrip("/")]:
        try:
            told[place] = _rollouts_of(place)
        except TandemError as error:  # of several one may be starting, or want another key
            problem = error
    having = {it: one for it, rollouts in told.items() for one in rollouts if one["model"] == model}
    if not having:
        if problem is not None:
            raise problem
        there = ", ".join(one["model"] for rollouts in told.values() for one in rollouts) or "none"
        raise UserError(f"the control document of {' and of '.join(told)} has no rollout of '{model}'; it has: {there}")
    if len(having) > 1:
        raise UserError(f"several `tandem up` have a rollout of '{model}': choose one with --url {' or '.join(having)}")
    (found,) = having.values()
    report, judgement = room("serving.decisions.rollout_report"), None
    if found["judgement"] is not None:
        judgement = room("serving.decisions.rollout").judgement_of(found["judgement"])
    names = f"{found['candidate']} of {model}", found["pinned"]
    copies = report.copies_text(found["copies_device_s"], found["copies_dollars"])
    if output is not None and judgement is not None:
        output.write_text(report.render(judgement, *names, copies), encoding="utf-8")
    elif output is not None:
        click.echo(f"tandem: {output} is not written, because nothing was seen yet", err=True)
    if as_json:
        click.echo(json.dumps({"version": 1, **found}))
    elif judgement is None:
        click.echo(f"{names[0]} beside {names[1]}, step {found['step']}: nothing was seen yet")
    else:
        by = (
            f"judged by this gateway alone: {found['problem']}"
            if found["problem"]
            else "judged by all gateways together"
        )
        click.echo(
            f"step {found['step']}; {found['compared']} requests compared here, {found['skipped']} skipped; {by}\n{copies}\n"
        )
        click.echo(report.as_text(judgement, *names))
    sys.exit(1 if judgement is not None and judgement.outcome == "rolled_back" else 0)


# -- inside -----------------------------------------------------------------------------------------------------------


def _rollouts_of(url: str) -> list[dict[str, Any]]:
    """Raises TandemError."""
    try:
        told: list[dict[str, Any]] = room("serving.local.console").read_rollouts(url, os.environ.get("TANDEM_API_KEY"))
    except (OSError, ValueError, LookupError) as error:
        raise _untold(url, error) from None
    return told


def _change(
    store: Any,
    text_of: Callable[[Any], tuple[str, str]],
    why: str | Callable[[], str],
    urls: tuple[str, ...],
    gone: tuple[str, ...] | None,
    *,
    as_json: bool,
) -> bool:
    """Whether anything was changed. Nothing is written where one of the gateways does not tell what it follows.

    `gone`: gateways that nobody waits for; None: those that are named by URL are all that are waited for.
    """
    before = store.history()
    text, name = text_of(before)
    document, revisions = room("serving.control.document"), room("serving.control.revisions")
    control = document.parse(text, name)
    try:
        found = {url: _control_of(url) for url in urls}
    except TandemError as error:
        raise type(error)(f"nothing was changed: {error}; without --url no gateway is asked") from None
    difference = revisions.difference(before.current, text, name)
    if not difference:
        _wait_for(urls, before.current)
        _tell(before.current, is_changed=False, urls=urls, is_seen=bool(urls), as_json=as_json)
        return False
    followers = [] if gone is None else _followers(store, gone)
    is_strict, alike = _require_followers(before, control, found, followers)
    if is_strict and gone is not None:
        name = f"'{is_strict}' must not mix versions, and"
        _wait_for_followers(store, gone, before.current, name, "nothing was changed", alike)
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    following = before.then(text, at=now, by=_who(), why=why if isinstance(why, str) else why())
    store.write(following, before)
    if not as_json:
        click.echo(difference, nl=False)
    _wait_for(urls, following.current)
    if is_strict and gone is not None:
        name = f"revision {following.current.name} is written, but"
        _wait_for_followers(store, gone, following.current, name, "`tandem undo` takes it back")
    _tell(
        following.current,
        is_changed=True,
        urls=urls,
        is_seen=bool(urls or (is_strict and gone is not None)),
        as_json=as_json,
    )
    return True


def _unknown(repository: Path, model: str, version: int | None) -> str:
    """What of them is not in the repository; empty where there is no repository here, or it has both."""
    if not repository.is_dir():
        return ""
    variants = room("serving.repository").Repository(repository).readable()[0]
    known = {variant.record.model for variant in variants}
    if model not in known:
        meant = room("serving.documents.nearest").nearest(model, known) if known else "; it is empty"
        return f"{repository} has no model '{model}'{meant}"
    try:
        records = [it for one in variants if one.record.model == model for it in (one.record, *one.earlier())]
    except UserError:  # an earlier record that cannot be read, which `tandem verify` tells
        return ""
    versions = sorted({record.model_version for record in records})
    if version is None or version in versions:
        return ""
    return f"{repository} has no version {version} of '{model}'; it has {', '.join(map(str, versions))}"


def _row(revision: Any) -> dict[str, Any]:
    return {
        "number": revision.number,
        "digest": f"sha256:{revision.digest}",
        "applied": revision.at or None,
        "by": revision.by,
        "why": revision.why or None,
    }


def _tell(revision: Any, *, is_changed: bool, urls: tuple[str, ...], is_seen: bool, as_json: bool) -> None:
    """`is_seen`: at gateways."""
    if as_json:
        click.echo(json.dumps({"version": 1, "changed": is_changed, **_row(revision), "gateways": list(urls)}))
    else:
        where = "in force" if is_seen else "written; no gateway was asked whether it has it (--url)"
        click.echo(f"{'' if is_changed else 'nothing to change: '}revision {revision.name} is {where}")


def _who() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in a container
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def _followers(store: Any, gone: tuple[str, ...]) -> list[Any]:
    """Raises UserError for a name that is none of theirs."""
    found = store.followers()
    names = [it.name for it in found]
    for name in gone:
        if name not in names:
            raise UserError(
                f"no gateway '{name}' has announced itself{room('serving.documents.nearest').nearest(name, names)}"
            )
        store.withdraw(name)
    return _but(found, gone)


def _require_followers(
    before: Any, control: Any, gateways: Mapping[str, dict[str, Any]], followers: Sequence[Any]
) -> tuple[str, frozenset[str]]:
    """A model that must not mix and changes what answers it, empty where there is none; and the digests of revisions that mix nothing.

    Raises GateRefused where it would mix, because one of the gateways cannot follow; and where a candidate cannot take over.
    """
    current = before.current
    old = _models(current)
    lacks = {url: found["lacks"] for url, found in gateways.items()} | {it.name: it.lacks for it in followers}
    for name, it in control.models.items():
        if it.rollout is None or it.rollout.step != "promote" or it.stable == _stable(old.get(name)):
            continue
        for gateway, of in lacks.items():
            if name in of:
                raise GateRefused(
                    f"the gateway {gateway} says that {of[name]}; promote it once it is there, or pin it. Nothing was changed"
                )
    strict = [name for name, it in control.models.items() if not it.may_mix and it.stable != _stable(old.get(name))]
    kept = [(it.digest, _models(it)) for it in before.revisions] if strict else []
    alike = frozenset(
        digest for digest, of in kept if all(_stable(of.get(name)) == control.models[name].stable for name in strict)
    )
    for url, found in gateways.items():
        digest = None if found["revision"] is None else found["revision"]["digest"].removeprefix("sha256:")
        stays = not found["is_current"] and digest in alike
        if strict and not stays and (not found["is_current"] or digest != current.digest):
            problem = found["problem"] or f"it has another revision than {current.name}"
            raise GateRefused(
                f"'{strict[0]}' must not mix versions, and the gateway {url} does not follow: {problem}. Nothing was changed"
            )
    return (strict[0] if strict else ""), alike


def _models(revision: Any) -> Mapping[str, Any]:
    """Of its document; none where that is an editor's mistake, which is in force nowhere."""
    try:
        models: Mapping[str, Any] = room("serving.control.document").parse(revision.text, "a revision").models
    except UserError:
        return {}
    return models


def _wait_for_followers(
    store: Any, gone: tuple[str, ...], revision: Any, before: str, after: str, alike: frozenset[str] = frozenset()
) -> None:
    """Until each has it, or cannot and stays with one of those `alike`. Raises GateRefused, at once for one that has fallen silent."""
    until = time.monotonic() + WAIT_S
    while problem := room("serving.control.followers").waits_for(
        left := [it for it in _but(store.followers(), gone) if not _stays(it, alike)], revision.digest
    ):
        if time.monotonic() > until or any(it.is_silent for it in left):
            raise GateRefused(f"{before} {problem}; {after}")
        time.sleep(LOOK_S)


def _stays(follower: Any, alike: frozenset[str]) -> bool:
    return bool(follower.problem) and not follower.is_silent and follower.digest in alike


def _but(followers: Sequence[Any], gone: tuple[str, ...]) -> list[Any]:
    return [it for it in followers if it.name not in gone]


def _stable(model: Any) -> Any:
    return None if model is None else model.stable


def _wait_for(urls: tuple[str, ...], revision: Any) -> None:
    """Until each has it. Raises GateRefused."""
    until = time.monotonic() + WAIT_S
    for url in urls:
        while problem := _problem(url, revision):
            if time.monotonic() > until:
                raise GateRefused(
                    f"revision {revision.name} is written, but the gateway {url} does not follow: {problem}; "
                    "`tandem undo` takes it back"
                )
            time.sleep(LOOK_S)


def _problem(url: str, revision: Any) -> str:
    """Why the gateway has not this revision in force; empty where it has."""
    try:
        found = _control_of(url)
    except TandemError as error:  # it told before the change
        return str(error)
    if found["revision"] is not None and found["revision"]["digest"] == f"sha256:{revision.digest}":
        return ""
    return found["problem"] or "it has another revision"


def _control_of(url: str) -> dict[str, Any]:
    """What a gateway says of its control document. Raises UserError, or EnvironmentFault where it is away."""
    try:
        status = room("serving.local.console").read_status(url.rstrip("/"), os.environ.get("TANDEM_API_KEY"))
        found: dict[str, Any] | None = status["control"]
    except (OSError, ValueError, LookupError) as error:
        raise _untold(url, error) from None
    if found is None:
        raise UserError(f"the gateway {url} has no control document; start it with --control")
    return found


def _untold(url: str, error: Exception) -> TandemError:
    if isinstance(error, OSError) and type(error) is not ConnectionError:  # which is an answer that is no status
        return EnvironmentFault(
            f"the gateway {url} does not answer ({error}); start it, or give the address of its admin listener"
        )
    return UserError(
        f"{url} does not tell its status ({error}): give the address of its admin listener with --url, and a key with the scope admin "
        "in TANDEM_API_KEY where it has keys"
    )
