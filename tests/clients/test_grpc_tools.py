"""gRPC's own packages for reflection and health, unchanged: a client that knows nothing of the protocol finds its messages and asks."""

from __future__ import annotations

import grpc
import pytest
from conftest import Gateway, Keys
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

SERVICE = "inference.GRPCInferenceService"


def test_what_reflection_tells_is_enough_to_ask(gateway: Gateway) -> None:
    with grpc.insecure_channel(gateway.grpc) as channel:
        found = ProtoReflectionDescriptorDatabase(channel)
        assert SERVICE in found.get_services()
        service = DescriptorPool(found).FindServiceByName(SERVICE)
        (rpc,) = (method for method in service.methods if method.name == "ModelMetadata")
        request, response = GetMessageClass(rpc.input_type), GetMessageClass(rpc.output_type)
        ask = channel.unary_unary(f"/{SERVICE}/{rpc.name}", request.SerializeToString, response.FromString)
        answer = ask(request(name="digits"), timeout=30)
        assert (answer.name, answer.inputs[0].datatype) == ("digits", "FP32")


def test_reflection_wants_a_key_where_metadata_do(keyed: Gateway, keys: Keys) -> None:
    with grpc.insecure_channel(keyed.grpc) as channel, pytest.raises(grpc.RpcError) as refused:
        ProtoReflectionDescriptorDatabase(channel).get_services()
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_health_is_checked_and_watched(keyed: Gateway) -> None:
    with grpc.insecure_channel(keyed.grpc) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=SERVICE)
        assert health.Check(request, timeout=30).status == health_pb2.HealthCheckResponse.SERVING
        assert next(health.Watch(request, timeout=30)).status == health_pb2.HealthCheckResponse.SERVING
