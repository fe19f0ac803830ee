"""Why does this container not serve: image, start, end, readiness? Pure: from what the kubelet wrote into the pod's status."""

from __future__ import annotations

from serving.cluster.status.reason import Reason, values_of, when
from serving.cluster.status.seen import GATEWAY, TRITON, Container, Pod, Seen

PULL = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "RegistryUnavailable")
VERIFY = "verify-models"  # the chart's init container that checks digests
NOT_ALLOWED = 126  # a shell's, and the runtime's, exit code for a program that may not be run
KILLED = 137  # 128 + SIGKILL: out of memory, or longer in stopping than its grace period


def of_container(it: Container, pod: Pod, seen: Seen) -> Reason | None:
    logs = f"kubectl --namespace {seen.namespace} logs {pod.name} -c {it.name}"
    has_failed = it.exit_code not in (None, 0)
    if it.waits in PULL:
        says = f": {it.message}" if it.message else ""
        return Reason(
            f"its image {it.image} cannot be pulled ({it.waits}{says})",
            "is the name right (imageRegistry, images.*), is it pushed, and do imagePullSecrets let the cluster in?",
        )
    if it.is_init and has_failed and not it.is_running and not it.is_ready:
        if it.name == VERIFY:
            why = f"{VERIFY} refuses the model repository (exit code {it.exit_code}{_words(it)}): a file changed after its gate"
            return Reason(f"{why}, or this server would compute a variant otherwise", f"read which: {logs}")
        return Reason(f"its init container {it.name} fails{_end(it)}", logs)
    if it.waits == "CrashLoopBackOff" or (has_failed and not it.is_running and not it.is_init):
        return _crash(it, pod, f"{logs} --previous")
    if it.is_init and it.is_running and not it.is_ready:  # a sidecar that runs is ready, and no reason
        return Reason(f"its init container {it.name} is at work", f"if it lasts: {logs}")
    if it.waits in ("ContainerCreating", "PodInitializing"):
        return _creating(pod, seen)
    if it.waits:  # CreateContainerConfigError, RunContainerError ...
        return Reason(
            f"{it.name} cannot be started ({it.waits}{': ' + it.message if it.message else ''})",
            f"kubectl --namespace {seen.namespace} describe pod {pod.name} says more",
        )
    if not it.is_init and it.is_running and not it.is_ready:
        return _not_ready(it, pod, logs)
    return None


def _creating(pod: Pod, seen: Seen) -> Reason:
    mounts = [it for it in seen.events or () if it.pod == pod.name and it.reason == "FailedMount"]
    if mounts:
        newest = max(mounts, key=when)
        return Reason(f"node {pod.node} cannot mount its volumes: {newest.message[:300]}", "does what it names exist?")
    return Reason(f"node {pod.node} pulls its image or mounts its volumes")


def _crash(it: Container, pod: Pod, logs: str) -> Reason:
    if it.ended == "OOMKilled":
        return Reason(f"{it.name} was killed for memory{_times(it)}", f"raise {values_of(pod)}.resources.limits.memory")
    way_out = f"read why: {logs}"
    if it.exit_code == KILLED:
        way_out += "; 137 is a kill: its startup or liveness probe, or memory"
    if it.exit_code == NOT_ALLOWED:
        way_out += "; 126: the image's program may not be run by this user"
    return Reason(f"{it.name} ends again and again{_end(it)}{_times(it)}", way_out)


def _not_ready(it: Container, pod: Pod, logs: str) -> Reason:
    before = f"; it ended before{_end(it)}{_times(it)}" if it.num_restarts else ""
    if not it.is_started:
        doing = "loads its models" if pod.component == TRITON else "starts"
        return Reason(f"{it.name} {doing} on node {pod.node}{before}", f"if it lasts: {logs}")
    if pod.component == TRITON:
        return Reason(f"{it.name} has started, but its first model is not ready{before}", f"read why: {logs}")
    if pod.component == GATEWAY:
        why = f"the gateway waits until every model that it must serve has answered{before}"
        return Reason(why, f"are the pools ready? {logs}")
    return Reason(f"{it.name} runs, but is not ready{before}", f"read why: {logs}")


def _end(it: Container) -> str:
    if it.exit_code is None:
        return ""
    named = f"{it.ended}, " if it.ended and it.ended != "Error" else ""
    return f" ({named}exit code {it.exit_code}{_words(it)})"


def _words(it: Container) -> str:
    return f": {it.last_words[-300:]}" if it.last_words else ""


def _times(it: Container) -> str:
    return f", started again {it.num_restarts} times" if it.num_restarts > 1 else ""
