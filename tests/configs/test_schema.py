"""The lists that we copied from vLLM and Ray are theirs, as installed."""

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import pytest

from configs.hardware import GPU_TYPES
from configs.sections.drafting import COLOCATED_METHODS
from configs.sections.verifiers import KvCacheDtype, LoraRank
from configs.vllm_arguments import vllm_arguments


def source(package: str, file: str) -> ast.Module:
    """A file of an installed package, not imported."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    return ast.parse((Path(spec.submodule_search_locations[0]) / file).read_text())


def constants(module: ast.Module, name: str) -> set[object]:
    """Every constant in what `name` is assigned."""
    for line in module.body:
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == name:
            return {node.value for node in ast.walk(line) if isinstance(node, ast.Constant)}
    raise AssertionError(f"{name} is not there any more")


def test_kv_cache_types_are_those_of_vllm() -> None:
    """vllm/config/cache.py."""
    assert set(get_args(KvCacheDtype)) == constants(source("vllm", "config/cache.py"), "CacheDType")


def test_lora_ranks_are_those_of_vllm() -> None:
    """vllm/config/lora.py."""
    assert set(get_args(LoraRank)) == constants(source("vllm", "config/lora.py"), "MaxLoRARanks")


def test_colocated_methods_are_known_to_vllm() -> None:
    """vllm/config/speculative.py."""
    module = source("vllm", "config/speculative.py")
    names = ("SpeculativeMethod", "MTPModelTypes", "NgramGPUTypes", "EagleModelTypes")
    names += ("DFlashModelTypes", "DSparkModelTypes")
    known = set.union(*(constants(module, name) for name in names))
    assert set(COLOCATED_METHODS) <= known


def test_engine_arguments_are_found_without_importing_vllm() -> None:
    """Both the engine's and the front end's, and no private ones."""
    source("vllm", "config/lora.py")
    known = vllm_arguments()
    assert {"max_num_seqs", "enable_log_requests", "tool_call_parser", "root_path"} <= known
    assert not any(name.startswith("_") for name in known)


def test_every_nvidia_type_of_ray_is_known() -> None:
    """ray/util/accelerators/accelerators.py."""
    module = source("ray", "util/accelerators/accelerators.py")
    names = {
        line.value.value
        for line in module.body
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]).startswith("NVIDIA_")
    }
    assert names and names <= set(GPU_TYPES)
