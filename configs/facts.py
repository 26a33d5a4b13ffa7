"""Gathers what the checks need beside the config itself, from this machine and no network.

Gathers only; `configs/checks` judges. A model that is not here (a hub id, or weights
that only the nodes have) leaves its facts empty, and the `shape` in the config counts.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from configs.errors import SecretError
from configs.model_folder import ModelFacts, locate, read_model
from configs.schema import ClusterConfig
from configs.secrets import read_secret
from configs.sections.values import SecretRef
from configs.vllm_arguments import vllm_arguments
from configs.vocabulary import vocabulary_fingerprint

NOT_HERE = ModelFacts()
CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True)
class MachineFacts:
    """What this machine has."""

    memory_bytes: int  # at most what a container may use
    cores: int
    avx512: bool


@dataclass(frozen=True)
class Facts:
    """Everything the checks take from outside the config."""

    machine: MachineFacts
    target: ModelFacts = NOT_HERE
    colocated_draft: ModelFacts = NOT_HERE
    worker_draft: ModelFacts = NOT_HERE
    vocabularies: tuple[str, str] | None = None  # fingerprints: the target's, the worker draft's
    missing_paths: tuple[tuple[str, Path], ...] = ()  # key, and where nothing is
    secret_problems: tuple[tuple[str, str], ...] = ()  # key, and why it cannot be had
    vllm_arguments: frozenset[str] | None = None  # None: not needed, or no vLLM is here


def gather_facts(config: ClusterConfig) -> Facts:
    """The facts that `configs.checks.check` wants.

    Reads config.json files, the sizes of weights, the secrets that are named (to see
    that they are there) and this machine's own numbers. What cannot be had is left
    empty, or is a fact of its own; nothing is raised.
    """
    sources = {key: source for key, source in _sources(config).items() if source is not None}
    folders = {key: locate(source, config.folders.models) for key, source in sources.items()}
    # `builtin:` models are made when they are first needed.
    paths = {key: folders[key] for key, source in sources.items() if source.startswith("/")}
    paths["model.chat_template"] = config.model.chat_template
    target = read_model(folders["model.source"])
    worker_draft = read_model(folders.get("drafting.split.workers.draft.source"))
    return Facts(
        machine=_machine_facts(),
        target=target,
        colocated_draft=read_model(folders.get("drafting.colocated.draft.source")),
        worker_draft=worker_draft,
        vocabularies=_vocabularies(target, worker_draft),
        missing_paths=tuple(
            (key, path) for key, path in paths.items() if path and not _is_there(path)
        ),
        secret_problems=tuple(
            (key, why) for key, ref in _secrets(config).items() if (why := _why_not(ref))
        ),
        vllm_arguments=vllm_arguments() if config.verifiers.engine_args else None,
    )


def _sources(config: ClusterConfig) -> dict[str, str | None]:
    colocated, split = config.drafting.colocated, config.drafting.split
    colocated_draft = colocated.draft if colocated else None
    worker_draft = split.workers.draft if split else None
    return {
        "model.source": config.model.source,
        **{f"model.adapters[{i}].source": a.source for i, a in enumerate(config.model.adapters)},
        "drafting.colocated.draft.source": colocated_draft.source if colocated_draft else None,
        "drafting.split.workers.draft.source": worker_draft.source if worker_draft else None,
    }


def _vocabularies(target: ModelFacts, draft: ModelFacts) -> tuple[str, str] | None:
    """Read only where both are here: a tokenizer.json takes a tenth of a second."""
    if target.folder is None or draft.folder is None:
        return None
    first, second = vocabulary_fingerprint(target.folder), vocabulary_fingerprint(draft.folder)
    return (first, second) if first and second else None


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _secrets(config: ClusterConfig) -> dict[str, SecretRef | None]:
    return {
        "redis.password": config.redis.password,
        "router.token": config.router.token,
        "kv.token": config.kv.token,
        "front_door.keys": config.front_door.keys,
        "front_door.domain_salt": config.front_door.domain_salt,
    }


def _why_not(ref: SecretRef | None) -> str | None:
    try:
        if ref is not None:
            read_secret(ref)
    except SecretError as error:
        return str(error)
    return None


def _machine_facts() -> MachineFacts:
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    limits += [int(limit) for file in CONTAINER_LIMITS if (limit := _read(file)).isdigit()]
    return MachineFacts(
        memory_bytes=min(limits),
        cores=os.cpu_count() or 1,
        avx512="avx512f" in _read("/proc/cpuinfo"),
    )


def _read(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
