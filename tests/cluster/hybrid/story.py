"""What happens, in which order, and what the clients saw of it: the phases of the run, and the report.

Nobody says how many Tritons there are to be: only the load's rate is turned, and the scaler of the release, the autoscaler and Karpenter do
the rest. Rule: what is done to the cluster is what an operator, a cloud or bad luck does, through the API server or to a process.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from serving.local.devices import processor_name
from tests.cluster.bed.api import Answered, Object, until
from tests.cluster.bed.cluster import Bed, Failed, is_true
from tests.cluster.hybrid import chart, moments
from tests.cluster.hybrid.adapter import Adapter
from tests.cluster.hybrid.chart import CPU, GPU, HIGH_RPS, LOW_RPS, NAMESPACE, RELEASE
from tests.cluster.hybrid.container import ROOT
from tests.cluster.hybrid.kubelet import REAL, Kubelet
from tests.cluster.hybrid.load import Load, summary
from tests.cluster.hybrid.names import TTL_S, Names, ready_addresses
from tests.cluster.hybrid.pod import Pod
from tests.cluster.hybrid.recorder import CLAIMS, Recorder
from tests.cluster.hybrid.watch import Watch
from tests.cluster.release import PROFILES, Release

GATEWAY_KILLED, SCALER_KILLED, SPOT = "a gateway is killed", "the scaler is killed", "a spot notice"
RISES, FALLS = "demand rises", "demand falls"
NO_ANSWER = ("ConnectionRefusedError", "ConnectionResetError", "BrokenPipeError", "IncompleteReadError")


@dataclass
class Story:
    bed: Bed
    kubelet: Kubelet
    slices: Watch
    load: Load
    adapter: Adapter
    recorder: Recorder
    say: Callable[[str], None]
    phases: dict[str, tuple[float, float]] = field(default_factory=dict)
    marks: dict[str, float] = field(default_factory=dict)  # seconds since the recorder began
    cold_starts: list[Object] = field(default_factory=list)
    is_api_readable: bool | None = None  # by the scaler

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.say(f"== {name}")
        began = time.monotonic()
        try:
            yield
        finally:
            self.phases[name] = (began, time.monotonic())

    def seen(self) -> Object:
        """Of each phase what was due meanwhile, once all of it is answered."""
        return {
            name: {"at_s": round(began - self.recorder.began, 1), "seconds": round(end - began, 1)}
            | summary([it for it in self.load.rows if began <= self.load.began + it.due_s < end])
            for name, (began, end) in self.phases.items()
        }

    def mark(self, name: str) -> None:
        self.marks[name] = round(time.monotonic() - self.recorder.began, 2)
        self.say(f"-- {name}")

    def release(self, **more: object) -> Release:
        return Release(self.bed, NAMESPACE, PROFILES["slim-images"], chart.values(**more), RELEASE)

    def play(self) -> None:
        with self.phase("install"):
            threading.Thread(target=self.begin_without_gpu, daemon=True).start()
            self.release().install()
            self.load.start()
        with self.phase("warm on the CPU"):
            time.sleep(5)
            until(lambda: self.wanted() == 0, "the scaler wants no GPU", 30)
            self.is_api_readable = self.ask_scaler("/status")["is_api_readable"]
        with self.phase(RISES):
            self.load.rate_rps = HIGH_RPS
            self.mark(RISES)
            until(lambda: self.answers_from(GPU), "answers from the GPU pool", 120)
        with self.phase("it takes over"):
            until(lambda: self.answers_from(GPU, share=0.9), "nearly all answers from the GPU pool", 40)
            self.cold_starts = self.ask_scaler("/cold-starts")["cold_starts"]
        self.break_things()
        with self.phase(SPOT):
            self.notice()
        with self.phase(FALLS):
            self.load.rate_rps = LOW_RPS
            self.mark(FALLS)
            until(lambda: self.wanted() == 0, "the scaler wants no GPU", 90)
            until(
                lambda: not self.bed.api.items(CLAIMS) and not self.kubelet.of("triton", GPU), "its nodes are gone", 90
            )
        with self.phase("on the CPU again"):
            time.sleep(2)

    def begin_without_gpu(self) -> None:
        """A Deployment whose autoscaler owns the number begins with one, before anybody has said how many; an operator who wants none says so."""
        path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{RELEASE}-{GPU}"
        for _ in range(600):
            with suppress(Answered):
                self.bed.api.merge(path, {"spec": {"replicas": 0}})
                return
            time.sleep(0.05)

    def break_things(self) -> None:
        with self.phase("a GPU node is deleted"):
            (pod,) = self.kubelet.of("triton", GPU)
            self.bed.api.delete(f"/api/v1/nodes/{pod.node}")
            until(lambda: self.is_replaced(pod), "its Triton runs elsewhere", 90)
            until(lambda: self.answers_from(GPU), "answers from the GPU pool", 30)
        with self.phase("the API server is restarted"):
            self.bed.stop("kube-apiserver")
            time.sleep(3)
            self.bed.start("kube-apiserver")
        # Early: one that has just begun lets no server go for a while, because it cannot know how long that has been there.
        with self.phase(SCALER_KILLED):
            self.kill(*self.kubelet.of("scaler"))
            until(lambda: self.wanted() is not None, "it tells a number again", 60)
        with self.phase("a Triton falls silent"):
            (pod,) = self.kubelet.of("triton", GPU)
            for it in (processes := pod.processes()):
                it.suspend()
            until(lambda: self.answers_from(CPU, share=0.9), "the CPU answers alone", 40)
        with self.phase("and dies"):
            for it in processes:
                it.kill()  # as when the container's first process crashes; the kubelet starts it again at the same address
            until(lambda: not self.is_settled(), "its death is noticed", 10)
            until(lambda: self.is_settled() and self.answers_from(GPU), "it is back", 60)
        with self.phase(GATEWAY_KILLED):
            time.sleep(0.5)  # what is under way when it dies was due in this phase
            last = self.load.rows[-1].endpoint.partition(":")[0]
            self.kill(next(it for it in self.kubelet.of("gateway") if it.object["status"]["podIP"] == last))
        with self.phase("an upgrade rolls both gateways and the CPU pool"):
            rolled = {"rolled": "out", REAL: "true"}
            self.release(**{"gateway.podAnnotations": rolled, f"pools.{CPU}.podAnnotations": rolled}).upgrade()
            until(self.is_settled, "no pod leaves any more", 60)

    def kill(self, pod: Pod) -> None:
        for it in pod.processes():
            it.kill()
        until(lambda: not self.is_settled(), "its death is noticed", 10)
        until(self.is_settled, "it is back", 60)

    def notice(self) -> None:
        """A cloud wants its machine back within two minutes: Karpenter's interruption controller deletes the claim, and the rest, taint and evictions
        inside the notice, is done by the part of Karpenter that runs here."""
        until(lambda: len(self.kubelet.of("triton", GPU)) == 1 and self.answers_from(GPU), "one GPU Triton answers", 60)
        (pod,) = self.kubelet.of("triton", GPU)
        (claim,) = (it for it in self.bed.api.items(CLAIMS) if it["status"].get("nodeName") == pod.node)
        self.mark("the notice")
        self.bed.api.delete(f"{CLAIMS}/{claim['metadata']['name']}")
        until(lambda: self.is_disrupted(pod.node), "its node takes nothing new", 30, 0.05)
        self.mark("the node is tainted")
        until(lambda: pod not in self.kubelet.of("triton", GPU), "its Triton is evicted", 60, 0.05)
        self.mark("its Triton is evicted")
        until(lambda: self.answers_from(CPU, share=0.9), "the CPU answers alone", 60)
        self.mark("the CPU answers alone")
        until(lambda: pod not in list(self.kubelet.pods.values()), "its Triton has left", 60)
        self.mark("its Triton has left")

    def is_disrupted(self, node: str) -> bool:
        with suppress(Answered):  # it may be gone by now
            taints = self.bed.api.get(f"/api/v1/nodes/{node}")["spec"].get("taints") or ()
            return any((it["key"], it["effect"]) == ("karpenter.sh/disrupted", "NoSchedule") for it in taints)
        return True

    def wanted(self) -> float | None:
        return self.adapter.wanted.get(GPU)

    def answers_from(self, pool: str, share: float = 0.0) -> bool:
        """More than a share of what is due in a second, lately."""
        now_s, rate = self.load.elapsed_s(), self.load.rate_rps
        last = [it.pool for it in self.load.rows[-int(3 * rate) :] if it.due_s > now_s - 1.5]
        return last.count(pool) > share * rate

    def is_replaced(self, gone: Pod) -> bool:
        found = self.kubelet.of("triton", GPU)
        return found != [gone] and len(found) == 1 and is_true(found[0].object, "Ready")

    def is_settled(self) -> bool:
        pods = list(self.kubelet.pods.values())
        return all("deletionTimestamp" not in it.object["metadata"] and is_true(it.object, "Ready") for it in pods)

    def ask_scaler(self, path: str) -> Object:
        (address,) = ready_addresses(self.slices.objects(), NAMESPACE, f"{RELEASE}-scaler", "metrics")
        with urllib.request.urlopen(f"http://{address}{path}", timeout=5) as answer:
            found: Object = json.load(answer)
            return found

    def answers(self) -> list[list[int]]:
        """Of each second of the recorder's: its number, what was due and answered by the CPU, by the GPU, and what failed."""
        shift_s = self.load.began - self.recorder.began
        seconds = Counter((int(it.due_s + shift_s), "error" if it.is_error else it.pool) for it in list(self.load.rows))
        last = max((at for at, _ in seconds), default=0)
        return [[at, *(seconds[at, kind] for kind in (CPU, GPU, "error"))] for at in range(last + 1)]


def unexcused(report: Object) -> int:
    """Errors but for one kind: who is connected to a gateway when it is killed, or is sent there before nodes know, has to try again."""
    killed = report["phases"].get(GATEWAY_KILLED, {"said": {}})
    excused = sum(count for said, count in killed["said"].items() if said in NO_ANSWER)
    return int(report["all"]["errors"]) - excused


def play(bed: Bed, folder: Path, say: Callable[[str], None], dns_ttl_s: float = TTL_S) -> Object:
    """The report. `say` is told what happens as it happens."""
    began = time.monotonic()
    timeline: list[tuple[float, str]] = []

    def told(line: str) -> None:
        timeline.append((round(time.monotonic() - began, 1), line))
        say(f"{timeline[-1][0]:6.1f} {line}")

    story = begin(bed, folder, told, dns_ttl_s)
    failed = ""
    try:
        story.play()
    except (AssertionError, Failed, Answered, ValueError, OSError) as error:
        failed = f"{type(error).__name__}: {error}"
        told(f"failed: {failed}")
    finally:
        if story.load.is_alive():
            story.load.stop()
        story.recorder.stop()
    rows = story.load.rows
    report: Object = {
        "failed": failed,
        "day": time.strftime("%Y-%m-%d", time.gmtime()),
        "processor": processor_name(),
        "seconds": round(time.monotonic() - began, 1),
        "phases": story.seen(),
        "all": summary(rows),
        "errors": [(round(it.due_s, 2), it.said, it.endpoint, it.pool) for it in rows if it.is_error][:200],
        "marks": story.marks,
        "first_gpu_answer_s": min((it.due_s + it.took_s for it in rows if it.pool == GPU), default=None),
        "load_began_s": round(story.load.began - story.recorder.began, 2),
        "arrivals_s": [round(it.due_s, 3) for it in sorted(rows, key=lambda it: it.due_s)],
        "answers": story.answers(),
        "looks": story.recorder.told(),
        "cold_starts": story.cold_starts,
        "is_api_readable": story.is_api_readable,
        "timeline": timeline,
    }
    return report | {"moments": [asdict(it) for it in moments.of(report)]}


def begin(bed: Bed, folder: Path, told: Callable[[str], None], dns_ttl_s: float) -> Story:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    bed.api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": labels}})
    until(lambda: bed.api.items(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"), "the default account")
    chart.make_node_pool(bed)
    curves = folder / "curves"
    curves.mkdir()
    for pool, file in chart.curves().items():
        (curves / f"{pool}.json").write_text(json.dumps(file))
    slices = Watch(bed.api, bed.layout.certificates, "/apis/discovery.k8s.io/v1/endpointslices", lambda *_: None)

    def addresses(service: str, port: str) -> list[str]:
        return ready_addresses(slices.objects(), NAMESPACE, service, port)

    Names(lambda namespace, service: ready_addresses(slices.objects(), namespace, service), dns_ttl_s)
    body = (ROOT / "model_repo" / "digits-fp32" / "sample.json").read_bytes()
    load = Load(lambda: addresses(f"{RELEASE}-gateway", "http"), "/v2/models/digits/infer", body, LOW_RPS)
    kubelet = Kubelet(bed, folder, curves, told)
    adapter = Adapter(bed, RELEASE, (CPU, GPU), lambda: addresses(f"{RELEASE}-scaler", "metrics"))
    recorder = Recorder(bed, adapter, kubelet.objects, lambda: load.rate_rps if load.is_alive() else 0.0)
    adapter.start()
    recorder.start()
    return Story(bed, kubelet, slices, load, adapter, recorder, told)
