"""The one-write answer, and that a connection it does not know is answered the ASGI way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from serving.gateway.fleet.variants import NotRoutable, read_variant
from serving.gateway.http.compression import decompress
from serving.gateway.metrics import Histogram, Metrics, PoolGauge
from serving.gateway.request.route import receipt_headers
from serving.scheduling.routing import Decision


def config(**change: Any) -> dict[str, Any]:
    gate = {
        "tandem_model": "m",
        "tandem_variant": "fp32",
        "tandem_engine": "cpu",
        "tandem_digest": "ab",
        "tandem_gate": "passed",
    }
    parameters = {**gate, **change.pop("parameters", {})}
    return {
        "name": "m-fp32",
        "instance_group": [{"kind": "KIND_CPU", "gpus": []}],
        "parameters": {key: {"string_value": value} for key, value in parameters.items() if value is not None},
        **change,
    }


def test_a_gated_variant_on_its_pools_device_is_routable() -> None:
    variant = read_variant(
        config(parameters={"tandem_speed_ratio": "1.43", "tandem_device_name": 'A "CPU"\r\nx: y'}), "cpu"
    )
    assert (variant.model, variant.name, variant.speed_ratio) == ("m", "m-fp32", 1.43)
    assert variant.device == 'cpu; name="A CPUx: y"'  # what comes from a configuration cannot end a header
    assert read_variant(config(parameters={"tandem_speed_ratio": "unmeasured"}), "cpu").speed_ratio is None
    emulated = read_variant(config(parameters={"tandem_emulated": "t4\r\n", "tandem_device_name": "A CPU"}), "emulated")
    assert emulated.device == 'emulated-t4; name="A CPU"'
    gpu = config(instance_group=[{"kind": "KIND_GPU", "gpus": [0]}])
    assert read_variant(gpu, "gpu").device == "gpu"


@pytest.mark.parametrize(("told", "sent"), [("INT8 3, FP32 1", b"INT8 3, FP32 1"), (None, b"unmeasured")])
def test_a_receipt_tells_the_types_that_were_seen_to_compute(told: str | None, sent: bytes) -> None:
    variant = read_variant(config(parameters={"tandem_dtype": told, "tandem_digest_1": "cd"}), "cpu")
    assert dict(receipt_headers(Decision("cpu", variant, "")))[b"tandem-dtype"] == sent
    earlier = dict(receipt_headers(Decision("cpu", variant.at("1"), "")))  # another file, of which nothing was seen
    assert (earlier[b"tandem-model-digest"], earlier[b"tandem-dtype"]) == (b"sha256:cd", b"unmeasured")


@pytest.mark.parametrize(
    ("policy", "version"),
    [
        ({"version_policy": {"specific": {"versions": ["3"]}}}, "3"),  # Triton's JSON has int64 as text
        ({"version_policy": {"specific": {"versions": [9, 10]}}}, "10"),
        ({"version_policy": {"latest": {"num_versions": 1}}}, "1"),
        ({}, "1"),
    ],
)
def test_a_variant_has_the_version_that_triton_was_told_to_serve(policy: dict[str, Any], version: str) -> None:
    assert read_variant(config(**policy), "cpu").version == version


@pytest.mark.parametrize(
    ("wrong", "device", "said"),
    [
        (config(parameters={"tandem_gate": None}), "cpu", "no gate record"),
        (config(parameters={"tandem_digest": None}), "cpu", "no gate record"),
        (config(parameters={"tandem_gate": "refused"}), "cpu", "refused"),
        (config(parameters={"tandem_gate": "not_allowed"}), "cpu", "not_allowed"),
        (config(), "gpu", "KIND_CPU"),
        (config(), "emulated", "it runs as fast as it can, in a pool whose device is 'emulated'"),
        (
            config(parameters={"tandem_emulated": "t4"}),
            "cpu",
            "it emulates t4, which only a pool with device 'emulated'",
        ),
        (
            config(parameters={"tandem_emulated": "t4"}, instance_group=[{"kind": "KIND_GPU", "gpus": [0]}]),
            "gpu",
            "emulates t4",
        ),
        (config(instance_group=[{"kind": "KIND_CPU"}, {"kind": "KIND_GPU", "gpus": [0]}]), "cpu", "KIND_GPU"),
        (config(instance_group=[{"kind": "KIND_GPU", "gpus": []}]), "gpu", "on no GPU"),
        (config(instance_group=[]), "cpu", "no kind"),
    ],
)
def test_whatever_no_gate_allows_here_is_not_routable_and_says_why(
    wrong: dict[str, Any], device: str, said: str
) -> None:
    with pytest.raises(NotRoutable, match=said):
        read_variant(wrong, device)


@pytest.mark.parametrize(
    ("value_s", "bound"), [(0.0001, "0.00025"), (0.00025, "0.00025"), (0.0003, "0.0005"), (11.0, "+Inf")]
)
def test_a_histogram_counts_in_the_first_bucket_that_holds_the_value(value_s: float, bound: str) -> None:
    histogram = Histogram()
    histogram.observe([value_s])
    rows = [line for line in histogram.lines("a", 'pool="cpu"').splitlines() if "_bucket" in line]
    assert next(line for line in rows if line.endswith(" 1.0")) == f'a_bucket{{le="{bound}",pool="cpu"}} 1.0'
    assert rows[-1] == 'a_bucket{le="+Inf",pool="cpu"} 1.0'


def test_answers_are_counted_at_a_scrape_and_never_twice() -> None:
    metrics = Metrics(lambda: [PoolGauge("cpu", "down", 0)])
    series = metrics.series("m", "fp32", "cpu")
    for _ in range(1500):
        series.answered(0.001, 0.002, 0.003)
    for _ in range(2):
        text = asyncio.run(metrics.text()).decode()
        assert 'tandem_requests_total{model="m",outcome="ok",pool="cpu",variant="fp32"} 1500.0' in text
        assert 'tandem_request_seconds_count{model="m",pool="cpu",variant="fp32"} 1500.0' in text
    assert 'tandem_pool_state{pool="cpu",state="down"} 1.0' in text


def test_decompression_stops_at_the_limit() -> None:
    import zlib

    assert decompress(zlib.compress(b"x" * 10), b"deflate", 10) == b"x" * 10
    with pytest.raises(Exception, match="more than 9 bytes"):
        decompress(zlib.compress(b"x" * 10), b"deflate", 9)
