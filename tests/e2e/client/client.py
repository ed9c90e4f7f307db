"""Tests the API with the Python client library `kubernetes`: python3 client.py KUBECONFIG

Prints "ok" and exits with 0 if all responses match the expectations of a Kubernetes client.
"""

import sys
import threading

from kubernetes import client, config, dynamic, watch
from kubernetes.client.rest import ApiException


def config_map(name, **data):
    metadata = client.V1ObjectMeta(name=name, labels={"suite": "python"})
    return client.V1ConfigMap(metadata=metadata, data=data)


def refused(code, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except ApiException as error:
        assert error.status == code, f"{error.status} instead of {code}: {error.body}"
        return error
    raise AssertionError(f"{call} was not refused with {code}")


def objects(core):
    made = core.create_namespaced_config_map("default", config_map("a", x="1"))
    assert made.metadata.uid and made.metadata.creation_timestamp, made
    refused(409, core.create_namespaced_config_map, "default", config_map("a"))
    refused(404, core.read_namespaced_config_map, "none", "default")
    refused(422, core.create_namespaced_config_map, "default", config_map("No Name"))

    patched = core.patch_namespaced_config_map("a", "default", {"data": {"y": "2"}})
    assert patched.data == {"x": "1", "y": "2"}, patched.data
    patched.data = {"z": "3"}
    assert core.replace_namespaced_config_map("a", "default", patched).data == {"z": "3"}
    refused(409, core.replace_namespaced_config_map, "a", "default", patched)
    tried = core.create_namespaced_config_map("default", config_map("tried"), dry_run="All")
    assert tried.metadata.name == "tried"
    refused(404, core.read_namespaced_config_map, "tried", "default")

    for number in range(10):
        core.create_namespaced_config_map("default", config_map(f"page-{number}"))
    names, token = [], None
    while True:
        page = core.list_namespaced_config_map("default", limit=3, _continue=token, label_selector="suite=python")
        names += [item.metadata.name for item in page.items]
        token = page.metadata._continue
        if not token:
            break
    assert names == ["a"] + [f"page-{number}" for number in range(10)], names
    core.delete_collection_namespaced_config_map("default", label_selector="suite=python")
    left = core.list_namespaced_config_map("default", label_selector="suite=python")
    assert not left.items, left.items


def watching(core):
    version = core.list_namespaced_config_map("default").metadata.resource_version
    seen = []
    ready = threading.Event()

    def write():
        ready.wait(30)
        core.create_namespaced_config_map("default", config_map("w", x="1"))
        core.patch_namespaced_config_map("w", "default", {"data": {"x": "2"}})
        core.delete_namespaced_config_map("w", "default")

    writer = threading.Thread(target=write)
    writer.start()
    stream = watch.Watch()
    ready.set()
    for event in stream.stream(
        core.list_namespaced_config_map, "default", resource_version=version, timeout_seconds=30
    ):
        seen.append((event["type"], event["object"].metadata.name))
        if event["type"] == "DELETED":
            stream.stop()
    writer.join(30)
    assert seen == [("ADDED", "w"), ("MODIFIED", "w"), ("DELETED", "w")], seen


def leases(api):
    coordination = client.CoordinationV1Api(api)
    spec = client.V1LeaseSpec(holder_identity="python", lease_duration_seconds=15)
    lease = client.V1Lease(metadata=client.V1ObjectMeta(name="leader"), spec=spec)
    held = coordination.create_namespaced_lease("default", lease)
    held.spec.holder_identity = "other"
    assert coordination.replace_namespaced_lease("leader", "default", held).spec.holder_identity == "other"


def custom_resources(api):
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "pumps.plant.example"},
        "spec": {
            "group": "plant.example",
            "scope": "Namespaced",
            "names": {"plural": "pumps", "singular": "pump", "kind": "Pump"},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "properties": {
                                "spec": {
                                    "type": "object",
                                    "required": ["rate"],
                                    "properties": {
                                        "rate": {"type": "integer", "minimum": 1},
                                        "unit": {"type": "string", "default": "l/min"},
                                    },
                                }
                            },
                        }
                    },
                }
            ],
        },
    }
    extensions = client.ApiextensionsV1Api(api)
    extensions.create_custom_resource_definition(definition)
    custom = client.CustomObjectsApi(api)
    place = ("plant.example", "v1", "default", "pumps")
    pump = {"apiVersion": "plant.example/v1", "kind": "Pump", "metadata": {"name": "p"}, "spec": {"rate": 5}}
    made = custom.create_namespaced_custom_object(*place, pump)
    assert made["spec"] == {"rate": 5, "unit": "l/min"}, made
    pump["metadata"]["name"], pump["spec"]["rate"] = "q", 0
    refused(422, custom.create_namespaced_custom_object, *place, pump)
    pumps = dynamic.DynamicClient(api).resources.get(api_version="plant.example/v1", kind="Pump")
    assert [item.metadata.name for item in pumps.get(namespace="default").items] == ["p"]


def main():
    with config.new_client_from_config(config_file=sys.argv[1]) as api:
        core = client.CoreV1Api(api)
        assert client.VersionApi(api).get_code().major == "1"
        objects(core)
        watching(core)
        leases(api)
        custom_resources(api)
    print("ok")


main()
