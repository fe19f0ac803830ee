"""The settings of a gateway: `tandem.yaml`. The TANDEM_… variables of the process are `environment.py`'s.

Every name is checked: an unknown one is an error that gives the nearest known name, because a misspelt option that is ignored
turns a feature off in silence. Seconds inside, unit last in the name; None is unset, 0 is 0.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from serving.cuda_options import CudaOptions
from serving.documents.nearest import nearest
from serving.documents.reader import Document, read_document
from serving.errors import UserError
from serving.redis_client import RedisClient

NAME = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._-]*")
EMULATED = "emulated"  # the device of pools whose times follow a file, and how the names of all such pools begin


def _http_url(url: str, default_port: int = 8000) -> str:
    """Triton's own port unless told otherwise."""
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/") or parts.query or parts.username:
        raise ValueError(f"'{url}' is not of the form http://HOST:PORT")
    try:
        port = parts.port or default_port
    except ValueError:
        raise ValueError(f"'{url}' has a port that is not a number from 1 to 65535") from None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"http://{host}:{port}"


Url = Annotated[str, AfterValidator(_http_url)]
ScalerUrl = Annotated[str, AfterValidator(lambda url: _http_url(url, 9091))]
Precision = Literal["fp32", "bf16", "tf32", "fp16", "int8"]  # as `repository.PRECISIONS`, which a test compares


def _variant_name(name: str) -> str:
    if name.rpartition("-")[2] not in get_args(Precision):
        raise ValueError(f"'{name}' is a name of no variant, which ends in its precision; write '{name}-fp32' for FP32")
    return name


VariantName = Annotated[str, Field(pattern=f"^{NAME.pattern}$"), AfterValidator(_variant_name)]
HOST_NAME = re.compile(r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*")


def host_name(name: str) -> str:
    """A name or an address as `Host` has it, in small letters; `*.` before a name means all below it. Raises ValueError."""
    lower = name.lower().removesuffix(".")
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(lower.removeprefix("[").removesuffix("]")))
    if HOST_NAME.fullmatch(lower) is None:
        raise ValueError(
            f"'{name}' is no name of a host: write it without http:// and without a port, as models.example.com"
        )
    return lower


HostName = Annotated[str, AfterValidator(host_name)]
ORIGIN = re.compile(r"(https?)://([a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\])(?::([1-9][0-9]{0,4}))?")
PORTS = {"http": "80", "https": "443"}  # that a browser leaves out


def web_origin(text: str) -> str:
    """A scheme, a host and a port, as browsers write the `Origin` of a page. Raises ValueError."""
    found = ORIGIN.fullmatch(text.lower().removesuffix("/"))
    if found is None:
        raise ValueError(
            f"'{text}' is no origin of pages: write scheme, host and port alone, as https://app.example.com or http://localhost:3000"
        )
    scheme, host, port = found.groups()
    return f"{scheme}://{host}" + ("" if port in (None, PORTS[scheme]) else f":{port}")


WebOrigin = Annotated[str, AfterValidator(web_origin)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PoolSettings(Strict):
    """A set of identical Triton servers of one device kind."""

    urls: tuple[Url, ...] = Field(
        min_length=1,
        description="Its Triton servers (HTTP), as http://HOST:PORT. A host name means every address that it has now, each one server.",
    )
    device: Literal["cpu", "gpu", "emulated"] = Field(
        description="The kind of device that every instance in it must run on. `emulated`: times follow a file (docs/emulated.md); "
        "its name begins with `emulated` then."
    )
    models: tuple[VariantName, ...] = Field(
        default=(),
        description="The variants that its servers load, such as `digits-fp16`: known before any of them has answered, so that what it "
        "alone serves is `not_ready` until then, and wakes it. Unset: of a pool that comes and goes, those that `--model-repository` has "
        "for its device.",
    )
    price_per_hour: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="What one of its servers costs an hour, in any currency; with `servers_per_card` what the card costs. For all pools or "
        "for none; without prices all servers cost the same. Spot and on-demand machines are two pools, each with its price.",
    )
    servers_per_card: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Servers that share one card (MIG, MPS, time-slicing): `price_per_hour` is the card's then, paid for one server as for "
        "all that fit.",
    )
    memory_bytes: int | None = Field(
        default=None,
        gt=0,
        description="Memory that one of its servers has for models; of a shared card its part. A model that takes more "
        "(`models.NAME.memory_bytes`) is not expected of the pool, and `models` that do not fit together are refused. Unset: not checked.",
    )
    min_replicas: int | None = Field(
        default=None, ge=0, description="Fewest servers that are kept. Unset: 0 for a GPU pool, 1 for others."
    )
    max_replicas: int | None = Field(
        default=None, ge=1, description="Most servers that can be had. Unset: as many as `urls` has, or `min_replicas`."
    )
    cold_start_s: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="Seconds from asking for a server to its first answer; the longer, the surer a GPU must pay before it is woken. "
        "Unset: 300 for a GPU pool, 40 for others; guesses, not measured.",
    )
    min_billing_s: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="Seconds that a server's node is paid for however short it was there: one that was asked for is kept so long, because "
        "to let it go sooner saves nothing. Unset: 0; clouds bill by the second after the first 60, some providers by the hour.",
    )
    consolidation_s: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="Seconds that its node is paid for after its last server has gone, a part of what waking costs: Karpenter's "
        "`consolidateAfter`, or cluster-autoscaler's `scale-down-unneeded-time` (600 by its default). Unset: 0.",
    )
    instances: int | None = Field(
        default=None,
        ge=1,
        le=64,
        description="How `tandem up` starts its Triton: instances of every model, which compute side by side. Unset: 1. This and those "
        "below are errors where nothing is started: for a pool with `urls` alone, and in the file of a gateway.",
    )
    threads: int | None = Field(
        default=None, ge=1, le=1024, description="Threads of each instance. Unset: the cores, shared out; 1 on a GPU."
    )
    queue_delay_us: int | None = Field(
        default=None,
        ge=0,
        le=10_000_000,
        description="Longest wait of its Triton for fuller batches. Unset: as each model was exported.",
    )
    max_batch: int | None = Field(
        default=None,
        ge=1,
        le=65536,
        description="Rows of a batch. Unset, and at most: what each model was exported for.",
    )
    batch_buckets: Literal["auto"] | tuple[Annotated[int, Field(ge=1, le=65536)], ...] | None = Field(
        default=None,
        description="Sizes of batches that get buffers of their own, which stay where they are; a batch is padded to the next size. "
        "`auto`: the fewest with which padding costs at most a quarter of a batch's time, by the model's speeds where it is served; powers "
        "of two where these are unknown. What fits into none runs without. On an H200 they lose up to 18 % without `enable_cuda_graph`. "
        "Unset: none.",
    )
    bucket_lengths: tuple[Annotated[int, Field(ge=1, le=65536)], ...] | None = Field(
        default=None,
        description="Lengths, of inputs of any length, that `batch_buckets` have buffers for, such as tokens of a text.",
    )
    cuda: CudaOptions | None = Field(
        default=None, description="Options of ONNX Runtime's CUDA provider, for a pool whose device is `gpu`."
    )
    versions: int | None = Field(
        default=None,
        ge=1,
        description="Newest versions of each model that are served beside each other, for /v2/models/NAME/versions/NUMBER; each takes the "
        "memory of a model. Unset: 1. Of more than two, `tandem export --keep-versions` keeps the files.",
    )
    max_memory_mb: int | None = Field(
        default=None,
        ge=64,
        description="Memory of all processes of its Triton, in MiB, past which it is started anew once it has grown, while others answer. "
        "Unset: 85 % of its container's limit, if any.",
    )


class LimitSettings(Strict):
    """Bounds on one request and on the waiting for it."""

    max_body_bytes: int = Field(
        default=64 * 2**20,
        gt=0,
        description="Largest request body, and largest after decompression; Triton's own default.",
    )
    max_connections: int = Field(
        default=4096,
        ge=1,
        description="Most connections of one listener; one more is 503 and closed, over gRPC only closed. 10 kB each (a guess), "
        "and a descriptor.",
    )
    max_connections_per_client: int = Field(
        default=2048,
        ge=1,
        description="Most connections from one address to one listener; one more is 429 and closed, over gRPC only closed. "
        "A proxy before the gateway is one address for all its clients.",
    )
    max_buffered_bytes: int = Field(
        default=256 * 2**20,
        gt=0,
        description="Most bytes held at once for all requests, over HTTP and gRPC together: bodies that do not come in one read, what they "
        "unpack to, and the tensors that are made of their JSON; over it a request is 503 and tried again, or 413 where it would not fit "
        "alone. Four of the largest bodies; the chart lets a gateway have 2 GiB for this and images.",
    )
    max_head_bytes: int = Field(
        default=32 * 2**10,
        ge=1024,
        description="Largest head of a request: its first line and headers; nginx's four buffers of 8 KiB.",
    )
    max_headers: int = Field(default=100, ge=1, description="Most headers of a request; Apache's LimitRequestFields.")
    head_timeout_s: float = Field(
        default=20.0,
        gt=0,
        allow_inf_nan=False,
        description="Longest time for the head of a request from its first byte, and for a new connection to send one; the first bound of "
        "Apache's RequestReadTimeout.",
    )
    body_pause_s: float = Field(
        default=20.0,
        gt=0,
        allow_inf_nan=False,
        description="Longest pause between two pieces of a body; the bound of Apache's RequestReadTimeout.",
    )
    body_timeout_s: float = Field(
        default=300.0,
        gt=0,
        allow_inf_nan=False,
        description="Longest time for a whole body: the largest at 1.8 Mbit/s. A guess, not measured.",
    )
    max_images: int = Field(
        default=32,
        ge=1,
        le=1024,
        description="Most images of a request to /v1/classify; the largest batch that a model is exported for unless told otherwise.",
    )
    max_image_pixels: int = Field(
        default=25_000_000,
        ge=1,
        le=89_478_485,  # what the decoder itself allows
        description="Largest image of a request to /v1/classify, in pixels: a phone's 24 million. Decoding takes 4 to 8 bytes for each of "
        "a JPEG, 17 for each of a WebP (measured), on each core: 425 MB with this.",
    )
    max_texts: int = Field(
        default=2048, ge=1, description="Most texts of one request for embeddings; OpenAI's own limit."
    )
    max_tokens: int = Field(
        default=300_000,
        ge=1,
        description="Most tokens of one request for embeddings, over all texts; OpenAI's own limit.",
    )
    upstream_timeout_s: float = Field(
        default=60.0,
        gt=0,
        description="Longest wait for an answer: the deadline of requests that set none, and the most that a longer one counts. "
        "A guess, not measured.",
    )
    drain_s: float = Field(
        default=10.0, ge=0, description="Longest wait for requests in flight when the gateway is told to stop."
    )


class ObjectiveSettings(Strict):
    """What is wanted of a model's answers."""

    latency_s: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Seconds from arrival within which an answer is worth something: the deadline of requests that set no earlier one.",
    )


class ModelSettings(Strict):
    """What is decided for a model by hand."""

    variants: dict[str, Precision] = Field(
        default_factory=dict,
        description="Pool name -> the variant that the public name means there, whatever was measured.",
    )
    objective: ObjectiveSettings = Field(
        default_factory=ObjectiveSettings, description="What is wanted of its answers."
    )
    memory_bytes: int | None = Field(
        default=None,
        gt=0,
        description="Memory that one of its variants takes on a server, to be compared with `pools.NAME.memory_bytes`. Unset: not checked.",
    )
    token_ids: bool = Field(
        default=False,
        description="Whether /v1/embeddings takes token ids in the place of texts, which must be of this model's own tokenizer: ids of "
        "another's, such as those that LangChain sends by default, give wrong vectors in silence.",
    )


class QuotaSettings(Strict):
    """Cards that several pools may have together."""

    pools: tuple[str, ...] = Field(min_length=1, description="Names of the pools that share it.")
    max_cards: int = Field(
        ge=0,
        description="Most cards of all of them, or servers where a pool shares none, such as a region's quota of GPUs: beyond it a node "
        "would be asked for in vain. Another size, spot or the CPU is taken instead.",
    )


class WarmNodesSettings(Strict):
    """Nodes without a server, for whichever of several pools wants one next."""

    pools: tuple[str, ...] = Field(
        min_length=2,
        description="Names of the pools whose servers run on such a node. Two at least: a node costs what its server does, so one pool's "
        "own servers are kept instead.",
    )
    max_nodes: int = Field(ge=1, description="Most of them at once.")
    node_start_s: float = Field(
        default=180.0,
        gt=0,
        allow_inf_nan=False,
        description="Seconds of a cold start that a node saves which is there, with its image. A guess, not measured.",
    )


class ScalingRules(Strict):
    """How eagerly servers come and go; the scaler, `tandem up` and `tandem simulate` go by the same."""

    max_load_ratio: float = Field(
        default=0.7,
        gt=0,
        le=1,
        description="Share of what servers can do that is planned with: above it queues grow long. A guess, not measured.",
    )
    patience_s: float = Field(
        default=5.0,
        ge=0,
        allow_inf_nan=False,
        description="Seconds of too few servers before a pool is woken: a shorter burst is over before a node is there. A guess, not "
        "measured.",
    )
    hold_s: float = Field(
        default=60.0,
        ge=0,
        allow_inf_nan=False,
        description="Seconds that a server which was asked for stays at least. A guess, not measured.",
    )
    cpu_hold_s: float = Field(
        default=300.0,
        ge=0,
        allow_inf_nan=False,
        description="Seconds at most for which fewer must do before a server of a pool that is always there goes: Kubernetes' own "
        "autoscaler waits as long. Less where missing it for a cold start costs less.",
    )
    handover_s: float = Field(
        default=60.0,
        ge=0,
        allow_inf_nan=False,
        description="The same once the GPUs answer that were waited for: they take the next burst. A guess, not measured.",
    )
    max_wakes_per_hour: int = Field(
        default=6,
        ge=1,
        description="After so many wakes within an hour nothing sleeps: a cold start each ten minutes is more than one saves. A guess.",
    )
    change_ratio: float = Field(
        default=1.0,
        gt=0,
        allow_inf_nan=False,
        description="How many times what a change costs (cold starts, `consolidation_s`) staying must have cost before it is made. 1: "
        "never more than twice what knowing the future would have cost (renting skis).",
    )
    undone_ratio: float = Field(
        default=10.0,
        gt=0,
        allow_inf_nan=False,
        description="What an hour of a server's work costs that is not done, in hours of the dearest server: by it past bursts say "
        "whether the next one is waited out, and how long a server is kept for it. A guess; what a refused request costs is yours to say.",
    )
    max_bursts: int = Field(
        default=16,
        ge=0,
        le=1000,
        description="Past bursts of each server that waking and keeping go by, once two were seen. 0: by prices alone.",
    )


SCALING_RULES = ScalingRules()


class AccessLogSettings(Strict):
    """A line of JSON for some of the inferences, without bodies and keys."""

    path: str = Field(min_length=1, description="The file, to which lines are added, or `-` for standard output.")
    sample_ratio: float = Field(
        default=0.01, gt=0, le=1, description="Share of the inferences that are written, the same ones in all gateways."
    )

    @property
    def cannot_write(self) -> str:
        """What a line says before the cause."""
        return f"the access log {self.path} cannot be written"


def collector_url(url: str) -> str:
    """Port 4318 unless told otherwise, as OTLP over HTTP has it; `/v1/traces` is added to what stands here."""
    parts = urlsplit(url)
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or parts.query
        or parts.fragment
        or "@" in parts.netloc
    ):
        raise ValueError(
            f"'{url}' is not of the form http://HOST:4318 or https://HOST/PATH; headers, such as those with a password, stand in "
            "OTEL_EXPORTER_OTLP_HEADERS"
        )
    try:
        port = parts.port or (443 if parts.scheme == "https" else 4318)
    except ValueError:
        raise ValueError(f"'{url}' has a port that is not a number from 1 to 65535") from None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port}{parts.path.rstrip('/').removesuffix('/v1/traces')}"


OTEL_DISABLED = "OTEL_SDK_DISABLED"


def is_otel_disabled() -> bool:
    """By OpenTelemetry's standard variable, whatever stands here."""
    return os.environ.get(OTEL_DISABLED, "").strip().lower() == "true"


CollectorUrl = Annotated[str, AfterValidator(collector_url)]


class OtelSettings(Strict):
    """Traces of some of the requests, sent to an OpenTelemetry collector."""

    endpoint: CollectorUrl = Field(
        description="The collector, as http://HOST:4318 (OTLP over HTTP); /v1/traces is added. What the standard variables OTEL_… say of "
        "headers, certificates, compression and resources counts too."
    )
    sample_ratio: float = Field(
        default=0.01,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="Share of the requests without a `traceparent` that are traced, the same ones in all gateways. Of one with a "
        "`traceparent` its sampled flag decides.",
    )
    max_tail_rps: float = Field(
        default=10.0,
        ge=0,
        allow_inf_nan=False,
        description="Most requests a second that are traced beside these because they failed, or took less than half or more than twice as "
        "long as predicted and 10 ms more or less; without Triton's own spans. 0: none.",
    )


def usage_place(place: str) -> str:
    """A file, or the URL of a Redis. Raises ValueError."""
    scheme, is_url, _ = place.partition("://")
    if is_url and scheme not in ("redis", "rediss"):
        raise ValueError(f"'{scheme}://…' is no place for usage: it is a FILE or redis://HOST:PORT[/DATABASE]")
    if is_url:
        try:
            RedisClient(place)  # asks nobody yet
        except UserError as error:
            raise ValueError(str(error)) from None
    return place


class UsageSettings(Strict):
    """What tenants use, kept over gateways and restarts."""

    place: Annotated[str, AfterValidator(usage_place)] = Field(
        min_length=1,
        description="A file for the gateways of one machine, or redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE] for many. Made "
        "where it is not there. A relative path is of the folder in which `tandem up` or the gateway was started.",
    )
    if_away: Literal["open", "closed"] = Field(
        default="open",
        description="What becomes of requests of tenants with quotas while the place cannot be reached: `open` lets them in by what this "
        "gateway has counted itself, `closed` refuses them with 503.",
    )


class GatewaySettings(Strict):
    """tandem.yaml."""

    version: Literal[1] = Field(description="Version of this format.")
    pools: dict[str, PoolSettings] = Field(
        min_length=1, description="Pool name -> pool. Of pools that cost the same for a request, the first counts."
    )
    quotas: dict[str, QuotaSettings] = Field(
        default_factory=dict, description="Name -> cards that several pools may have together."
    )
    warm_nodes: dict[str, WarmNodesSettings] = Field(
        default_factory=dict,
        description="Name -> nodes that are kept warm for several pools, while past bursts say that this pays.",
    )
    scaling: ScalingRules = Field(default_factory=ScalingRules, description="When servers come and go.")
    scaler: ScalerUrl | None = Field(
        default=None,
        description="The scaler, as http://HOST:PORT (9091 unless said): the console shows its nodes, what they cost and why it changed a "
        "pool. Nothing else depends on it.",
    )
    parity_ratio: float = Field(
        default=0.0,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="Share of the requests that another server, pool or variant answers too, with capacity that is idle, so that what "
        "drifts is found and gets no more traffic; 0.01 is a good start. 0: none, and at no cost.",
    )
    models: dict[str, ModelSettings] = Field(
        default_factory=dict, description="Public model name -> what is decided for it."
    )
    access_log: AccessLogSettings | None = Field(
        default=None, description="Where inferences are written down as JSON. Unset: nowhere."
    )
    otel: OtelSettings | None = Field(
        default=None, description="Where traces are sent, by OpenTelemetry. Unset: nowhere, and at no cost."
    )
    usage: UsageSettings | None = Field(
        default=None, description="Where tenants' use is kept, for quotas and `tandem cost`. Unset: nowhere."
    )
    limits: LimitSettings = Field(default_factory=LimitSettings, description="Bounds on one request.")
    allowed_hosts: tuple[HostName, ...] = Field(
        default=(),
        description="Names that lead to this gateway, beside localhost and the address it listens on, such as those of a proxy before "
        "it; `*.example.com` means all below it. Without API keys on loopback any other Host is 403; where names are listed, everywhere.",
    )
    allowed_origins: tuple[WebOrigin, ...] = Field(
        default=(),
        description="Origins of other sites' pages, such as https://app.example.com, whose scripts may ask this gateway with an API key of "
        "their own (CORS); the port is part of an origin. None by default, and refused without API keys.",
    )
    allow_missing: bool = Field(
        default=False,
        description="Whether the gateway is ready without the models that no Triton could load. Where `models` names some, those are "
        "what it waits for.",
    )
    triton_words: bool = Field(
        default=False,
        description="Whether clients of v2 that look at texts find Triton's: `triton` as the server's name in its metadata, and Triton's "
        "words for an unknown model or version, a full queue, an expired deadline and a refused load before Tandem's own sentences.",
    )


# Of a pool: how its Triton is started.
OF_A_TRITON = (
    "instances",
    "threads",
    "queue_delay_us",
    "max_batch",
    "batch_buckets",
    "bucket_lengths",
    "cuda",
    "versions",
    "max_memory_mb",
)


def require_nothing_started(name: str, pool: PoolSettings, path: Path, why: str) -> None:
    """Raises UserError where the pool says how to start a Triton."""
    if said := [key for key in OF_A_TRITON if getattr(pool, key) is not None]:
        raise UserError(f"{path}: pools.{name}.{said[0]} would do nothing: {why}")


def comes_and_goes(name: str, pool: PoolSettings) -> bool:
    """Whether its servers are there only while they pay: GPU pools, and those that emulate one."""
    return pool.device == "gpu" or name.startswith(f"{EMULATED}-gpu")


def price_of_one(pool: PoolSettings) -> float | None:
    """Of one server an hour: its share of the card's, where all places are taken."""
    return None if pool.price_per_hour is None else pool.price_per_hour / pool.servers_per_card


CONTROL_DOCUMENT = "the control document, the file of --control (docs/tenants.md, docs/rollouts.md)"
IN_CONTROL = dict.fromkeys(  # names that `serving/control/document.py` reads
    ("tenants", "pin", "split", "sticky_by", "may_mix", "rollout", "weight", "reserved_ratio"), CONTROL_DOCUMENT
)


def read_settings(path: Path) -> GatewaySettings:
    """tandem.yaml as settings. Raises UserError with the place and the nearest known name."""
    settings = settings_of(read_document(path, "the configuration"))
    for name, pool in settings.pools.items():
        require_nothing_started(
            name, pool, path, "a gateway alone starts no Triton; `tandem triton` takes them as options"
        )
    return settings


def settings_of(document: Document) -> GatewaySettings:
    """Checked. Raises UserError."""
    settings = document.values(GatewaySettings, strict=False, elsewhere=IN_CONTROL)
    for name, of_pool in settings.pools.items():
        if (of_pool.device == EMULATED) != name.startswith(EMULATED):
            raise document.wrong(
                ("pools", name),
                f"device '{of_pool.device}' does not go with this name; names that begin with '{EMULATED}' are for pools whose "
                f"device is '{EMULATED}', and for no others",
            )
        if of_pool.cuda is not None and of_pool.device != "gpu":
            raise document.wrong(
                ("pools", name, "cuda"), f"options of a card do nothing for a pool of device '{of_pool.device}'"
            )
    _require_all_prices_or_none(settings.pools, document)
    _require_possible_replicas(settings.pools, document)
    _require_quotas(settings, document)
    _require_warm_nodes(settings, document)
    _require_memory(settings, document)
    for model, of_model in settings.models.items():
        for pool in of_model.variants:
            if pool not in settings.pools:
                raise document.wrong(("models", model, "variants"), f"no pool '{pool}'{nearest(pool, settings.pools)}")
    return settings


def _require_all_prices_or_none(pools: Mapping[str, PoolSettings], document: Document) -> None:
    without = [name for name, pool in pools.items() if pool.price_per_hour is None]
    if without and len(without) < len(pools):
        have = next(name for name in pools if name not in without)
        raise document.wrong(
            ("pools", without[0]),
            f"it has no price_per_hour and pools.{have} has one; give every pool a price, or none (without prices all servers "
            "cost the same)",
        )


def _require_possible_replicas(pools: Mapping[str, PoolSettings], document: Document) -> None:
    for name, pool in pools.items():
        if pool.min_replicas is not None and pool.max_replicas is not None and pool.min_replicas > pool.max_replicas:
            raise document.wrong(
                ("pools", name), f"min_replicas {pool.min_replicas} is more than max_replicas {pool.max_replicas}"
            )


def _require_quotas(settings: GatewaySettings, document: Document) -> None:
    for name, quota in settings.quotas.items():
        for pool in quota.pools:
            if pool not in settings.pools:
                raise document.wrong(("quotas", name, "pools"), f"no pool '{pool}'{nearest(pool, settings.pools)}")
        kept = sum(_cards_kept(pool, settings.pools[pool]) for pool in set(quota.pools))
        if kept > quota.max_cards:
            raise document.wrong(
                ("quotas", name),
                f"max_cards {quota.max_cards} is less than the {kept} that min_replicas of its pools take; raise it, or lower those",
            )


def _require_warm_nodes(settings: GatewaySettings, document: Document) -> None:
    for name, warm in settings.warm_nodes.items():
        place = ("warm_nodes", name, "pools")
        for pool in warm.pools:
            if pool not in settings.pools:
                raise document.wrong(place, f"no pool '{pool}'{nearest(pool, settings.pools)}")
            if not comes_and_goes(pool, settings.pools[pool]):
                raise document.wrong(place, f"{pool} is always there, and its nodes with it; name pools of GPUs")
        if f"warm-{name}" in settings.pools:
            raise document.wrong(("warm_nodes", name), f"a pool is called warm-{name}; take another name")
        if len(set(warm.pools)) < 2:
            raise document.wrong(
                place, f"two different pools at least; the servers of {warm.pools[0]} alone are kept by themselves"
            )


def _cards_kept(name: str, pool: PoolSettings) -> int:
    least = pool.min_replicas
    if least is None:
        least = 0 if comes_and_goes(name, pool) else 1
    return -(-least // pool.servers_per_card)


def _require_memory(settings: GatewaySettings, document: Document) -> None:
    for name, pool in settings.pools.items():
        if pool.memory_bytes is None:
            continue
        takes = {own: settings.models[of].memory_bytes or 0 for own in pool.models if (of := _model_of(own, settings))}
        if sum(takes.values()) > pool.memory_bytes:
            raise document.wrong(
                ("pools", name, "models"),
                f"{', '.join(takes)} take {sum(takes.values()):,} bytes by models.*.memory_bytes, and one server has "
                f"{pool.memory_bytes:,} (memory_bytes); leave some to another pool, or take larger servers",
            )


def _model_of(variant: str, settings: GatewaySettings) -> str | None:
    """The longest of the models with settings that it may be a variant of."""
    names = (name for name in settings.models if variant == name or variant.startswith(f"{name}-"))
    return max(names, key=len, default=None)


def require_keys_where_others_reach(hosts: Mapping[str, str], *, has_keys: bool, insecure_no_auth: bool) -> None:
    """`hosts`: option -> what it says to listen on. Raises UserError."""
    if has_keys and insecure_no_auth:
        raise UserError("--keys and --insecure-no-auth contradict each other: leave one of them out")
    for option, host in hosts.items():
        if not (has_keys or insecure_no_auth or is_loopback(host)):
            raise UserError(
                f"{option} {host} can be reached from other machines and there are no API keys: name a file with --keys "
                "(`tandem keys add` makes one), listen on 127.0.0.1, or say --insecure-no-auth"
            )


def is_loopback(host: str) -> bool:
    """Whether listening on `host` is reachable from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
