"""A generic gRPC client: it knows nothing of ingraft but what reflection tells.

client.py ADDRESS PID NAME FUNCTION [TOKEN]

Lists processes by NAME, enables the metric `calls` at FUNCTION of PID, prints `enabled`, streams samples until a line comes on
stdin with the value to wait for, removes, and prints one line of JSON with what it saw.
"""

import json
import sys

import grpc
from google.protobuf import descriptor_pool, message_factory
from google.rpc import error_details_pb2, status_pb2  # the standard details of gRPC errors
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

address, pid, name, function = sys.argv[1:5]
metadata = [("authorization", "Bearer " + sys.argv[5])] if len(sys.argv) > 5 else []
channel = grpc.insecure_channel(address)
database = ProtoReflectionDescriptorDatabase(channel)
pool = descriptor_pool.DescriptorPool(database)


def call(service, method, timeout=60, **fields):
    """Calls a method by its descriptor; streams come back as iterators."""
    descriptor = pool.FindServiceByName(service).methods_by_name[method]
    request = message_factory.GetMessageClass(descriptor.input_type)(**fields)
    response = message_factory.GetMessageClass(descriptor.output_type)
    kind = channel.unary_stream if descriptor.server_streaming else channel.unary_unary
    stub = kind(
        f"/{service}/{method}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=response.FromString,
    )
    return stub(request, timeout=timeout, metadata=metadata)


def details(error):
    """Reason and domain of an error, from its standard details."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in status_pb2.Status.FromString(value).details:
                info = error_details_pb2.ErrorInfo()
                if detail.Unpack(info):
                    return {"code": error.code().name, "message": error.details(), "reason": info.reason, "domain": info.domain}
    return {"code": error.code().name, "message": error.details()}


seen = {"services": sorted(database.get_services())}
seen["version"] = str(call("ingraft.v1.Daemon", "Version"))
seen["health"] = call("grpc.health.v1.Health", "Check").status
seen["processes"] = [
    process.pid for chunk in call("ingraft.v1.Processes", "List", glob=name) for process in chunk.processes
]
seen["metrics"] = [metric.name for chunk in call("ingraft.v1.Metrics", "List") for metric in chunk.metrics]

try:
    list(call("ingraft.v1.Instrumentation", "Enable", target={"pid": int(pid)}, measure={"functions": ["no_such_function"]}))
    seen["error"] = None
except grpc.RpcError as error:
    seen["error"] = details(error)

measurement, pairs = None, []
for step in call(
    "ingraft.v1.Instrumentation", "Enable", target={"pid": int(pid)}, measure={"functions": [function], "function_metric": "calls"}
):
    event = step.WhichOneof("event")
    if event == "enabled":
        measurement = step.enabled.measurement
        seen["stopped_ns"] = step.enabled.stopped_ns
    elif event == "pairs":
        pairs += [pair.function.function for pair in step.pairs.pairs]
seen["pairs"] = pairs

stream = call("ingraft.v1.Metrics", "Stream", measurement=measurement, interval_ns=20_000_000, threads=True)
first = next(stream)
seen["first"] = [value.value for value in first.sample.values]
print("enabled", flush=True)
wanted = int(sys.stdin.readline())
values, samples = {}, 1
for step in stream:
    samples += 1
    for value in step.sample.values:
        values[value.pair] = value.value
    if values.get(0, 0) >= wanted:
        break
seen["streamed"] = values.get(0, 0)
seen["samples"] = samples

seen["inserted"] = [item.pid for chunk in call("ingraft.v1.Instrumentation", "List") for item in chunk.inserted]
last = {}
for step in call("ingraft.v1.Instrumentation", "Remove", measurement=measurement):
    event = step.WhichOneof("event")
    if event == "removed":
        seen["text_restored"] = step.removed.text_restored
    elif event == "last":
        for value in step.last.values:
            last[value.pair] = value.value
seen["last"] = last.get(0)
stream.cancel()

profile = None
measure = {"functions": [function], "counts": {"check": True}}
for step in call("ingraft.v1.Instrumentation", "Enable", target={"pid": int(pid)}, measure=measure):
    if step.WhichOneof("event") == "enabled":
        profile = step.enabled.measurement
parts = [step.part for step in call("ingraft.v1.Profiles", "Query", measurement=profile)]
seen["profiled"] = [counts.details.name for part in parts for counts in part.functions]
parts = list(call("ingraft.v1.Profiles", "EventTotals", measurement=profile))
seen["totals"] = {"functions": parts[0].head.functions, "inexact": parts[0].head.inexact}
seen["threads"] = [[thread.tid, thread.instructions] for part in parts for thread in part.threads]
list(call("ingraft.v1.Instrumentation", "Remove", measurement=profile))
print(json.dumps(seen), flush=True)
