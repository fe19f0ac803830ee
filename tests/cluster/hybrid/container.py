"""What does one container of a pod run on this machine? Values only, from the pod as the API server stored it.

What changes: images become this checkout's programs, 0.0.0.0 the pod's address, and the places that a pod mounts, folders of its own.
Pools named emulated-SOMETHING, as one for cards must be, are emulated: the chart knows no such device, so their `--pool=DEVICE` becomes the
pool's name with `--emulate`, and their `device` in tandem.yaml `emulated` (`emulated_config`). A service account's token lies where a pod finds
it, by a mount of its process's own. User, limits and security settings of the spec are not imitated. What is not known is refused.
"""

from __future__ import annotations

import base64
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tests.cluster.bed.api import Object

ROOT = Path(__file__).resolve().parents[3]
IMAGES = frozenset({"tandem-gateway", "tandem-triton-cpu", "tandem-triton-gpu"})
PROGRAMS = {"tandem": [sys.executable, "-m", "serving"], "python": [sys.executable], "cp": ["cp"], "grep": ["grep"]}
KEPT = ("PATH", "HOME", "LANG", "XDG_CACHE_HOME", "TANDEM_CACHE")  # of this process, as an image has its own
IMAGE_ENVIRONMENT = {"PYTHONUNBUFFERED": "1", "ORT_DISABLE_TELEMETRY": "1"}
EMULATED = "emulated"
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
IN_ITS_PLACE = ("unshare", "--mount", "sh", "-c", f'mount --bind "$0" {ACCOUNT} && exec "$@"')
DEVICE = re.compile(rf'("{EMULATED}[^"]*":\n *urls: .*\n *device: )\w+')  # of such a pool in the chart's tandem.yaml

Look = Callable[[str, str], Object]  # "configmaps" or "secrets", name -> the object
Token = Callable[[Object], str]  # a projected volume's serviceAccountToken -> the token


class NotImitated(Exception):
    """The spec asks for something that this stand-in cannot do."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where one pod has its things here."""

    folder: Path
    ip: str
    image_models: Path  # stands in for /opt/tandem/model_repo of the image
    curves: Path  # a file for each emulated pool, POOL.json

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
    for device in ("gpu", "cpu"):
        if (word := f"--pool={device}") in found and (name := pool_name(pod, device)).startswith(EMULATED):
            at = found.index(word)
            found[at : at + 1] = [f"--pool={name}", f"--emulate={places.curves / name}.json"]
    accounts = [it["name"] for it in container.get("volumeMounts", []) if it["mountPath"] == ACCOUNT]
    return [*IN_ITS_PLACE, str(places.volume(accounts[0])), *found] if accounts else found


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


def pool_name(pod: Object, device: str) -> str:
    name = str(pod["metadata"]["labels"].get("tandem-pool", ""))
    if device == "gpu" and not name.startswith(EMULATED):
        raise NotImitated(f"the pool {name} wants a card; name it {EMULATED}-SOMETHING")
    return name


def emulated_config(text: str) -> str:
    return DEVICE.sub(rf"\g<1>{EMULATED}", text)


def environment(pod: Object, container: Object, look: Look, api: str = "") -> dict[str, str]:
    """`api`: address of the API server, which every container is told, whether it may ask there or not."""
    if "envFrom" in container:
        raise NotImitated(f"{container['name']} has envFrom")
    at = urlsplit(api)
    service = {"KUBERNETES_SERVICE_HOST": str(at.hostname), "KUBERNETES_SERVICE_PORT": str(at.port)} if api else {}
    of_here = {name: os.environ[name] for name in KEPT if name in os.environ}
    return {
        **of_here,
        **IMAGE_ENVIRONMENT,
        **service,
        **{it["name"]: _value(pod, it, look) for it in container.get("env", [])},
    }


def _value(pod: Object, it: Object, look: Look) -> str:
    source = it.get("valueFrom")
    if source is None:
        return str(it.get("value", ""))
    if "secretKeyRef" in source:
        return data(look("secrets", source["secretKeyRef"]["name"]))[source["secretKeyRef"]["key"]].decode()
    if "configMapKeyRef" in source:
        return data(look("configmaps", source["configMapKeyRef"]["name"]))[source["configMapKeyRef"]["key"]].decode()
    if "fieldRef" in source:
        return _field(pod, source["fieldRef"]["fieldPath"])
    raise NotImitated(f"the variable {it['name']} comes from {', '.join(source)}")


def _field(pod: Object, path: str) -> str:
    found: object = pod
    for part in path.split("."):
        found = found[part] if isinstance(found, dict) else None
    return str(found)


def data(it: Object) -> dict[str, bytes]:
    """Of a ConfigMap or a Secret."""
    if it.get("kind", "") == "Secret" or "type" in it:
        return {name: base64.b64decode(value) for name, value in (it.get("data") or {}).items()}
    return {name: value.encode() for name, value in (it.get("data") or {}).items()}


def make_volumes(pod: Object, places: Places, look: Look, token: Token) -> None:
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
        elif "projected" in it:
            files = {}
            for source in it["projected"]["sources"]:
                files |= _projected(pod, source, look, token)
        else:
            raise NotImitated(f"the volume {it['name']} is of a kind that is not made here")
        for name, content in files.items():
            (folder / name).write_bytes(content)


def _projected(pod: Object, source: Object, look: Look, token: Token) -> dict[str, bytes]:
    if "serviceAccountToken" in source:
        return {source["serviceAccountToken"]["path"]: token(source["serviceAccountToken"]).encode()}
    if "configMap" in source:
        found = data(look("configmaps", source["configMap"]["name"]))
        return {of["path"]: found[of["key"]] for of in source["configMap"]["items"]}
    if "downwardAPI" in source:
        return {of["path"]: _field(pod, of["fieldRef"]["fieldPath"]).encode() for of in source["downwardAPI"]["items"]}
    raise NotImitated(f"a volume is projected from {', '.join(source)}")
