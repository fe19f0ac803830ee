"""The messages with which KEDA asks an external scaler over gRPC, described here by hand: no generated code, no compiler at set-up.

Names and numbers of fields are those of KEDA's `externalscaler.proto`; they are a wire format and never change. Of a number KEDA takes the
`…Float` where it is above 0 and the older integer otherwise, so both are set. `StreamMetricSpec`, which is optional, is left out: what a
replica counts for never changes here.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)

PACKAGE = "externalscaler"
SERVICE = f"{PACKAGE}.ExternalScaler"
METRIC = "tandem_wanted_replicas"

_Kind = descriptor_pb2.FieldDescriptorProto
_STRING, _BOOL, _INT64, _DOUBLE = _Kind.TYPE_STRING, _Kind.TYPE_BOOL, _Kind.TYPE_INT64, _Kind.TYPE_DOUBLE
_MAP_ENTRY = "ScaledObjectRef.ScalerMetadataEntry"
# message -> its fields as (name, number, type or the message that it holds, whether it repeats)
_MESSAGES: dict[str, list[tuple[str, int, int | str, bool]]] = {
    "ScaledObjectRef": [
        ("name", 1, _STRING, False),
        ("namespace", 2, _STRING, False),
        ("scalerMetadata", 3, _MAP_ENTRY, True),
    ],
    "IsActiveResponse": [("result", 1, _BOOL, False)],
    "MetricSpec": [
        ("metricName", 1, _STRING, False),
        ("targetSize", 2, _INT64, False),
        ("targetSizeFloat", 3, _DOUBLE, False),
    ],
    "GetMetricSpecResponse": [("metricSpecs", 1, "MetricSpec", True)],
    "GetMetricsRequest": [("scaledObjectRef", 1, "ScaledObjectRef", False), ("metricName", 2, _STRING, False)],
    "MetricValue": [
        ("metricName", 1, _STRING, False),
        ("metricValue", 2, _INT64, False),
        ("metricValueFloat", 3, _DOUBLE, False),
    ],
    "GetMetricsResponse": [("metricValues", 1, "MetricValue", True)],
}


def _described() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="externalscaler.proto", package=PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        _add_fields(message, fields)
        if name == "ScaledObjectRef":  # a map is a list of entries on the wire
            entry = message.nested_type.add(name=_MAP_ENTRY.rpartition(".")[2])
            _add_fields(entry, [("key", 1, _STRING, False), ("value", 2, _STRING, False)])
            entry.options.map_entry = True
    return file


def _add_fields(message: Any, fields: list[tuple[str, int, int | str, bool]]) -> None:
    for name, number, kind, repeats in fields:
        field = message.field.add(name=name, number=number)
        field.label = _Kind.LABEL_REPEATED if repeats else _Kind.LABEL_OPTIONAL
        if isinstance(kind, str):
            field.type, field.type_name = _Kind.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
        else:
            field.type = kind


# A pool of its own: another library in the process may know KEDA's messages, too.
_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(_described())


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))


ScaledObjectRef = _message("ScaledObjectRef")
IsActiveResponse = _message("IsActiveResponse")
GetMetricSpecResponse = _message("GetMetricSpecResponse")
GetMetricsRequest = _message("GetMetricsRequest")
GetMetricsResponse = _message("GetMetricsResponse")


def active(is_active: bool) -> Any:
    return IsActiveResponse(result=is_active)


def spec() -> Any:
    """One server counts for one: the autoscaler's average over the servers there are is to be 1."""
    answer = GetMetricSpecResponse()
    answer.metricSpecs.add(metricName=METRIC, targetSize=1, targetSizeFloat=1.0)
    return answer


def value(name: str, replicas: int) -> Any:
    answer = GetMetricsResponse()
    answer.metricValues.add(metricName=name or METRIC, metricValue=replicas, metricValueFloat=float(replicas))
    return answer
