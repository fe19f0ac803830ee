"""What the messages and RPCs of gRPC's own services look like: health checks, and reflection, by which tools learn what a server offers.

Written down here as descriptors, out of which protobuf makes the classes that read and write them: the packages that bring both need a
newer protobuf than tritonclient allows. Rule: names and numbers are gRPC's.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]

HEALTH = "grpc.health.v1.Health"
REFLECTION = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
TYPES = {"string": 9, "bytes": 12, "int32": 5, "enum": 14, "message": 11}
Field = tuple[
    str, int, str
]  # name, number, type: of TYPES, or the name of a message or an enum; `repeated` or `oneof` before it

HEALTH_MESSAGES: dict[str, list[Field]] = {
    "HealthCheckRequest": [("service", 1, "string")],
    "HealthCheckResponse": [("status", 1, "enum .HealthCheckResponse.ServingStatus")],
}
SERVING_STATUS = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")
REFLECTION_MESSAGES: dict[str, list[Field]] = {
    "ServerReflectionRequest": [
        ("host", 1, "string"),
        ("file_by_filename", 3, "oneof string"),
        ("file_containing_symbol", 4, "oneof string"),
        ("file_containing_extension", 5, "oneof message .ExtensionRequest"),
        ("all_extension_numbers_of_type", 6, "oneof string"),
        ("list_services", 7, "oneof string"),
    ],
    "ExtensionRequest": [("containing_type", 1, "string"), ("extension_number", 2, "int32")],
    "ServerReflectionResponse": [
        ("valid_host", 1, "string"),
        ("original_request", 2, "message .ServerReflectionRequest"),
        ("file_descriptor_response", 4, "oneof message .FileDescriptorResponse"),
        ("all_extension_numbers_response", 5, "oneof message .ExtensionNumberResponse"),
        ("list_services_response", 6, "oneof message .ListServiceResponse"),
        ("error_response", 7, "oneof message .ErrorResponse"),
    ],
    "FileDescriptorResponse": [("file_descriptor_proto", 1, "repeated bytes")],
    "ExtensionNumberResponse": [("base_type_name", 1, "string"), ("extension_number", 2, "repeated int32")],
    "ListServiceResponse": [("service", 1, "repeated message .ServiceResponse")],
    "ServiceResponse": [("name", 1, "string")],
    "ErrorResponse": [("error_code", 1, "int32"), ("error_message", 2, "string")],
}
# Service -> RPC -> request, response, whether each is a stream.
RPCS: dict[str, dict[str, tuple[str, str, bool, bool]]] = {
    HEALTH: {
        "Check": ("HealthCheckRequest", "HealthCheckResponse", False, False),
        "Watch": ("HealthCheckRequest", "HealthCheckResponse", False, True),
    },
    **{
        name: {"ServerReflectionInfo": ("ServerReflectionRequest", "ServerReflectionResponse", True, True)}
        for name in REFLECTION
    },
}


def _file(service: str) -> Any:
    """The FileDescriptorProto of a service, under the path that it has everywhere."""
    package, _, name = service.rpartition(".")
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package.replace('.', '/')}/{'health' if service == HEALTH else 'reflection'}.proto",
        package=package,
        syntax="proto3",
    )
    for message, fields in (HEALTH_MESSAGES if service == HEALTH else REFLECTION_MESSAGES).items():
        made = file.message_type.add(name=message)
        if any(kind.startswith("oneof") for *_, kind in fields):
            made.oneof_decl.add(name="message_request" if message.endswith("Request") else "message_response")
        for field, number, words in fields:
            *before, kind = words.split(" ")
            of = before[-1] if kind.startswith(".") else kind
            added = made.field.add(name=field, number=number, type=TYPES[of], label=3 if "repeated" in before else 1)
            if kind.startswith("."):
                added.type_name = f".{package}{kind}"
            if "oneof" in before:
                added.oneof_index = 0
    if service == HEALTH:
        status = file.message_type[1].enum_type.add(name="ServingStatus")
        for number, word in enumerate(SERVING_STATUS):
            status.value.add(name=word, number=number)
    offered = file.service.add(name=name)
    for rpc, (taken, given, takes_stream, gives_stream) in RPCS[service].items():
        offered.method.add(
            name=rpc,
            input_type=f".{package}.{taken}",
            output_type=f".{package}.{given}",
            client_streaming=takes_stream,
            server_streaming=gives_stream,
        )
    return file


POOL = (
    descriptor_pool.DescriptorPool()
)  # of its own: where a package describes the same messages, both live side by side
for _service in RPCS:
    POOL.Add(_file(_service))


def message(service: str, name: str) -> Any:
    """The class of a message in the package of this service."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"{service.rpartition('.')[0]}.{name}"))


def files_of(descriptor: Any) -> list[bytes]:
    """A file and then all that it needs, each as the bytes of a FileDescriptorProto."""
    found: dict[str, bytes] = {}
    waiting = [descriptor]
    while waiting:
        file = waiting.pop()
        if file.name not in found:
            found[file.name] = file.serialized_pb
            waiting += file.dependencies
    return list(found.values())
