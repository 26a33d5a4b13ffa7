"""Would the API server take an object? Kubernetes' own schemas and operators', offline and strict.

tests/helm/crds has the definitions of KubeRay 1.7.0, the Gateway API 1.2.1 and the Prometheus
operator 0.80.0 (all Apache-2.0). KubeRay's say less of a pod than the API server does, so each pod
template is also judged as a bare pod.
"""

import gzip
import json
import zipfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from chart import Object, pod_templates
from chart_tools import kubernetes_schemas
from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.jsonschema import DRAFT202012

CRDS = Path("tests/helm/crds").absolute()
FOLDER = "kubernetes_validate/kubernetes-json-schema"


def problems(objects: list[Object], version: str) -> Iterator[str]:
    """Everything that a server of this Kubernetes version (`1.28`) would refuse."""
    for found in objects:
        yield from _problems(found, version)
    for name, template in pod_templates(objects):
        pod = {"apiVersion": "v1", "kind": "Pod", **template}
        pod["metadata"] = {**template.get("metadata", {}), "name": "judged"}
        for problem in _problems(pod, version):
            yield f"{name}: {problem}"


def _problems(found: Object, version: str) -> Iterator[str]:
    for error in _validator(found["apiVersion"], found["kind"], version).iter_errors(found):
        where = "/".join(map(str, error.absolute_path))
        yield f"{found['kind']} {found['metadata']['name']} {where}: {error.message[:200]}"


@lru_cache
def _validator(api: str, kind: str, version: str) -> Draft202012Validator:
    group, _, short = api.rpartition("/")
    if (file := CRDS / f"{group}_{kind.lower()}s.yaml.gz").exists():
        return _custom(file, short)
    name = f"{kind.lower()}-{group.split('.')[0]}{'-' if group else ''}{short}.json"
    return Draft202012Validator(_read(version, name), registry=_registry(version))


@lru_cache
def _registry(version: str) -> "Registry[Any]":
    """What schemas of a version refer to, searched once for all of them."""
    definitions = DRAFT202012.create_resource(_read(version, "_definitions.json"))
    return Registry[Any]().with_resource("_definitions.json", definitions).crawl()


@lru_cache
def _read(version: str, name: str) -> Any:
    with zipfile.ZipFile(kubernetes_schemas()) as schemas:
        folder = f"{FOLDER}/v{version}.0-local-strict"
        try:
            return json.loads(schemas.read(f"{folder}/{name}"))
        except KeyError:
            raise LookupError(f"Kubernetes {version} has no {name}") from None


@lru_cache
def _custom(file: Path, short: str) -> Draft202012Validator:
    definition = yaml.load(gzip.decompress(file.read_bytes()), yaml.CSafeLoader)
    version = next(v for v in definition["spec"]["versions"] if v["name"] == short)
    schema = _as_json_schema(version["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    return Draft202012Validator(schema)


def _as_json_schema(schema: Object) -> Object:
    """An OpenAPI schema of a custom resource as JSON schema, in which unknown fields are errors."""
    schema = dict(schema)
    if schema.pop("x-kubernetes-int-or-string", None):
        schema.pop("type", None)
        pattern = schema.pop("pattern", None)
        text = {"type": "string"} | ({"pattern": pattern} if pattern else {})
        schema["anyOf"] = [{"type": "number"}, text]
    keeps = schema.pop("x-kubernetes-preserve-unknown-fields", False)
    if schema.pop("nullable", False) and "type" in schema:
        schema["type"] = [schema["type"], "null"]
    if "required" in schema:  # the server fills in defaults before it judges
        known = schema.get("properties", {})
        schema["required"] = [r for r in schema["required"] if "default" not in known.get(r, {})]
    if "properties" in schema:
        schema["properties"] = {k: _as_json_schema(v) for k, v in schema["properties"].items()}
        if not keeps:
            schema.setdefault("additionalProperties", False)
    elif isinstance(schema.get("additionalProperties"), dict):
        schema["additionalProperties"] = _as_json_schema(schema["additionalProperties"])
    if "items" in schema:
        schema["items"] = _as_json_schema(schema["items"])
    return schema
