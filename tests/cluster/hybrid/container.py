"""What does one container of a pod run on this machine? Values only, from the pod as the API server stored it.

What changes: images become this checkout's programs, 0.0.0.0 the pod's address, and the places that a pod mounts, folders of its own.
A Triton that asks for a card is an emulated one: the chart knows no such device, so its `--pool=gpu` becomes the pool's name with
`--emulate`, and `device: gpu` of the gateways' tandem.yaml becomes `device: emulated` (`emulated_config`). Its pool must be named
emulated-SOMETHING in the chart's values. User, limits and security settings of the spec are not imitated. What is not known is refused.
"""

from __future__ import annotations

import base64
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.bed.api import Object

ROOT = Path(__file__).resolve().parents[3]
IMAGES = frozenset({"tandem-gateway", "tandem-triton-cpu", "tandem-triton-gpu"})
PROGRAMS = {"tandem": [sys.executable, "-m", "serving"], "python": [sys.executable], "cp": ["cp"], "grep": ["grep"]}
KEPT = ("PATH", "HOME", "LANG", "XDG_CACHE_HOME", "TANDEM_CACHE")  # of this process, as an image has its own
IMAGE_ENVIRONMENT = {"PYTHONUNBUFFERED": "1", "ORT_DISABLE_TELEMETRY": "1"}
EMULATED = "emulated"

Look = Callable[[str, str], Object]  # "configmaps" or "secrets", name -> the object


class NotImitated(Exception):
    """The spec asks for something that this stand-in cannot do."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where one pod has its things here."""

    folder: Path
    ip: str
    image_models: Path  # stands in for /opt/tandem/model_repo of the image
    curves: Path  # what emulated pools go by

    def volume(self, name: str) -> Path:
        return self.folder / "volumes" / name


def name_of(image: str) -> str:
    """Of `registry/team/tandem-gateway:0.1.0@sha256:...` the program's. Raises NotImitated."""
    name = re.sub(r"[:@].*$", "", image.rpartition("/")[2])
    if name not in IMAGES:
        raise NotImitated(f"no program here stands in for the image {image}")
    return name


def command(pod: Object, container: Object, places: Places) -> list[str]:
    name_of(container["image"])
    words = [*container.get("command", []), *container.get("args", [])]
    if not words:
        raise NotImitated(f"{container['name']} runs what its image says")
    found = here(words, container, places)
    if "--pool=gpu" in found:
        at = found.index("--pool=gpu")
        found[at : at + 1] = [f"--pool={pool_name(pod)}", f"--emulate={places.curves}"]
    return found


def here(words: list[str], container: Object, places: Places) -> list[str]:
    first, *rest = words
    if first not in PROGRAMS:
        raise NotImitated(f"{container['name']} runs {first}")
    return [*PROGRAMS[first], *(_word(it, container, places) for it in rest)]


def _word(word: str, container: Object, places: Places) -> str:
    mounts = {it["mountPath"]: str(places.volume(it["name"])) for it in container.get("volumeMounts", [])}
    there = {"/opt/tandem/model_repo": str(places.image_models), **mounts, "0.0.0.0": places.ip}
    option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
    for path in sorted(there, key=len, reverse=True):
        if value == path or value.startswith(path + "/"):
            return option + equals + there[path] + value[len(path) :]
    return word


def pool_name(pod: Object) -> str:
    name = str(pod["metadata"]["labels"]["tandem-pool"])
    if not name.startswith(EMULATED):
        raise NotImitated(f"the pool {name} wants a card; name it {EMULATED}-SOMETHING")
    return name


def emulated_config(text: str) -> str:
    return text.replace("device: gpu", f"device: {EMULATED}")


def environment(pod: Object, container: Object, look: Look) -> dict[str, str]:
    if "envFrom" in container:
        raise NotImitated(f"{container['name']} has envFrom")
    of_here = {name: os.environ[name] for name in KEPT if name in os.environ}
    return {**of_here, **IMAGE_ENVIRONMENT, **{it["name"]: _value(pod, it, look) for it in container.get("env", [])}}


def _value(pod: Object, it: Object, look: Look) -> str:
    source = it.get("valueFrom")
    if source is None:
        return str(it.get("value", ""))
    if "secretKeyRef" in source:
        return data(look("secrets", source["secretKeyRef"]["name"]))[source["secretKeyRef"]["key"]].decode()
    if "configMapKeyRef" in source:
        return data(look("configmaps", source["configMapKeyRef"]["name"]))[source["configMapKeyRef"]["key"]].decode()
    if "fieldRef" in source:
        found: object = pod
        for part in source["fieldRef"]["fieldPath"].split("."):
            found = found[part] if isinstance(found, dict) else None
        return str(found)
    raise NotImitated(f"the variable {it['name']} comes from {', '.join(source)}")


def data(it: Object) -> dict[str, bytes]:
    """Of a ConfigMap or a Secret."""
    if it.get("kind", "") == "Secret" or "type" in it:
        return {name: base64.b64decode(value) for name, value in (it.get("data") or {}).items()}
    return {name: value.encode() for name, value in (it.get("data") or {}).items()}


def make_volumes(pod: Object, places: Places, look: Look) -> None:
    for it in pod["spec"].get("volumes", []):
        folder = places.volume(it["name"])
        folder.mkdir(parents=True, exist_ok=True)
        if "configMap" in it:
            found = data(look("configmaps", it["configMap"]["name"]))
            files = {name: emulated_config(text.decode()).encode() for name, text in found.items()}
        elif "secret" in it:
            found = data(look("secrets", it["secret"]["secretName"]))
            items = it["secret"].get("items")
            files = {of["path"]: found[of["key"]] for of in items} if items else found
        elif "emptyDir" in it:
            files = {}
        else:
            raise NotImitated(f"the volume {it['name']} is of a kind that is not made here")
        for name, content in files.items():
            (folder / name).write_bytes(content)
