"""The processes that `lookahead.py` measures, on the cores of their placement."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from engine_process import Ask, EngineProcess
from harness import console
from model_workers import ModelWorker
from transformers import AutoTokenizer

from configs.schema import ClusterConfig

TOKEN_ENV: Final = "DRAFT_TOKEN_OF_TEST"
LONGEST, LOOKAHEAD, FAN_OUT, CONTEXT = 8, 9, 4, 1024
PATIENT: Final = {"local_lookup": False, "wait_fraction": 8.0, "wait_max_ms": 1000.0}
"""Drafts of a fixed length are waited for; how long is the governor's to decide."""
MOST_ENGINES: Final = 3
"""With the draft model in the verifier at a time: each takes 2.5 GiB."""
WIDE: Final = "-2"
"""Ends the kind of an arm that has both cores to itself."""
SEQUENCES: Final = 16
"""That are judged at once where only acceptance is measured."""


@dataclass(frozen=True)
class Cores:
    """Where a process computes: a command before it, and its threads."""

    prefix: tuple[str, ...]
    threads: int


VERIFIER, DRAFTER = Cores(("taskset", "-c", "0"), 1), Cores(("taskset", "-c", "1"), 1)
BOTH = Cores((), 2)


def cores_of(kind: str) -> Cores:
    """What the verifier of this kind of arm has."""
    return BOTH if kind.endswith(WIDE) else VERIFIER


@dataclass(frozen=True)
class Place:
    """What runs for one draft model.

    Attributes:
        plain: Without speculation, by kind of arm.
        split: With draft workers; requests say how long drafts are, or leave it to the governor.
        colocated: With the draft model in the verifier.
        workers: `waits` drafts what it is asked for, `ahead` goes on.
    """

    plain: Mapping[str, EngineProcess]
    split: EngineProcess
    colocated: "ColocatedEngines"
    workers: dict[str, ModelWorker]


@contextmanager
def verifiers(
    folder: Path, target: Path, kinds: Sequence[str]
) -> Iterator[tuple[dict[str, EngineProcess], EngineProcess]]:
    """Without speculation, of these kinds, and with draft workers."""
    drafting = {"max_length": LONGEST, "split": PATIENT, "governor": "auto", "patience_s": None}
    with ExitStack() as stack:
        plain = {
            kind: stack.enter_context(engine(folder, kind, target, cores_of(kind)))
            for kind in kinds
        }
        split = stack.enter_context(engine(folder, "split", target, VERIFIER, **drafting))
        warm([*plain.values(), split])
        yield plain, split


class ColocatedEngines:
    """vLLM's `draft_model`, an engine for each kind of arm and draft length, started when asked.

    Args:
        folder: For their logs.
        target: Folder of the target.
        draft: Folder of the draft model.
    """

    def __init__(self, folder: Path, target: Path, draft: Path) -> None:
        self._folder, self._target, self._draft = folder, target, draft
        self._engines: dict[str, EngineProcess] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._engines:
            self._end_oldest()

    def of(self, arm: str) -> EngineProcess:
        """Of `KIND LENGTH`; of too many engines the one that has waited longest ends."""
        engine_of_it = self._engines.pop(arm, None)
        if engine_of_it is None:
            while len(self._engines) >= MOST_ENGINES:
                self._end_oldest()
            kind, _, length = arm.partition(" ")
            spec = {
                "method": "draft_model",
                "model": str(self._draft),
                "num_speculative_tokens": int(length),
            }
            engine_of_it = engine(
                *(self._folder, arm, self._target, cores_of(kind)), speculative_config=spec
            )
            warm([engine_of_it])
        self._engines[arm] = engine_of_it
        return engine_of_it

    def _end_oldest(self) -> None:
        self._engines.pop(next(iter(self._engines))).__exit__(None, None, None)


@contextmanager
def draft_workers(folder: Path, target: Path, draft: Path) -> Iterator[dict[str, ModelWorker]]:
    """One that waits and one that runs ahead."""
    with (
        worker(folder / "waits", target, draft, 0, 0) as waits,
        worker(folder / "ahead", target, draft, LOOKAHEAD, FAN_OUT) as ahead,
    ):
        assert waits.endpoint and ahead.endpoint, "waits until they are ready"
        yield {"waits": waits, "ahead": ahead}


@contextmanager
def judge(folder: Path, base: Path) -> Iterator[EngineProcess]:
    """The target without its layers that change nothing, and drafts of just the longest length."""
    drafting = {"max_length": LONGEST, "split": PATIENT, "governor": "fixed", "patience_s": 30.0}
    with engine(folder, "judge", base, VERIFIER, max_num_seqs=SEQUENCES, **drafting) as one:
        warm([one])
        yield one


def engine(folder: Path, name: str, target: Path, cores: Cores, **more: Any) -> EngineProcess:
    """A verifier's engine."""
    console.print(f"  starting {name}")
    arguments: dict[str, Any] = {
        "dtype": "bfloat16",
        "max_model_len": CONTEXT,
        "max_num_seqs": 8,
        "enable_prefix_caching": False,
    }
    log = folder / f"{name}.log"
    return EngineProcess(
        target, log, prefix=cores.prefix, threads=cores.threads, **(arguments | more)
    )


def warm(engines: Sequence[EngineProcess]) -> None:
    """Waits until they run."""
    for one in engines:
        one.run([Ask(prompt=[1, 2, 3], max_tokens=2)], "none")


def worker(folder: Path, target: Path, draft: Path, lookahead: int, fan_out: int) -> ModelWorker:
    """A draft worker."""
    model = {
        "source": str(draft),
        "dtype": "bfloat16",
        "eager": True,
        "sessions": 2 * SEQUENCES,
        "memory_gib": 0.25,
        "lookahead": lookahead,
        "fan_out": fan_out,
    }
    split = {"token": {"env": TOKEN_ENV}, "workers": {"kinds": ["model"], "draft": model}}
    config = ClusterConfig.model_validate(
        {
            "model": {"name": "m", "source": str(target), "max_model_len": CONTEXT},
            "drafting": {"split": split},
        }
    )
    return ModelWorker(config, folder, DRAFTER.prefix, DRAFTER.threads)


def token_ids(base: Path, prompts: Sequence[str]) -> list[list[int]]:
    """The prompts, as chats."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=False
        )
        for prompt in prompts
    ]
