"""The process of an `EngineProcess`: one engine, its draft workers, and what a test asks."""

import os
import random
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import torch
from engine_process import Answer, Ask, Job, Proposal, Run, Sampler, Start, Worker
from model_workers import ModelWorker
from scripted_worker import Script, ScriptedWorker
from vllm import LLM, SamplingParams
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from vllm.v1.sample import rejection_sampler

from configs.schema import ClusterConfig
from replicas.draft.drafters import make_drafters
from replicas.draft.service import DraftService, ServiceSettings
from replicas.messages import (
    MAX_DRAFT_TOKENS,
    SPOKEN,
    AskBatch,
    Codec,
    Draft,
    DraftBatch,
    pack_tokens,
    unpack_tokens,
)

TOKEN_ENV = "DRAFT_TOKEN_OF_TEST"
FINGERPRINT = "the target's"
PATIENCE_S = 10.0
"""Waiting for drafts, so that they depend on no timing; and for workers to take in an end."""


class Engine:
    """The engine, and the draft workers that are there for it."""

    def __init__(self, start: Start) -> None:
        speculation: dict[str, Any] = {}
        if start.max_length:
            speculation["speculative_config"] = {
                "method": "custom_class",
                "model": "replicas.verifier.proposer.Proposer",
                "num_speculative_tokens": start.max_length,
            }
        self._llm = LLM(
            start.model,
            seed=0,
            disable_log_stats=False,
            worker_extension_cls="replicas.verifier.worker_extension.WorkerExtension",
            **speculation,
            **start.engine_args,
        )
        self._engine = self._llm.llm_engine
        self._vocab_size: int = self._engine.model_config.get_vocab_size()
        self._longest = start.max_length
        self._proposals: dict[str, list[Proposal]] = {}
        self._ids = 0
        self._model_worker: ModelWorker | None = None
        if self._longest:
            self._connect(start)
            if start.workers:
                folder = Path(tempfile.mkdtemp())
                self._model_worker = ModelWorker(self._config, folder)

    def _connect(self, start: Start) -> None:
        os.environ.setdefault(TOKEN_ENV, secrets.token_hex(16))
        self._codec = Codec(os.environ[TOKEN_ENV].encode())
        split = {"token": {"env": TOKEN_ENV}, **start.split, "workers": start.workers}
        self._config = ClusterConfig.model_validate(
            {
                "model": {"name": "m", "source": start.model},
                "drafting": {
                    "max_length": start.max_length,
                    "governor": {"mode": start.governor},
                    "split": split,
                },
            }
        )
        arguments = (self._config.model_dump(mode="json"), FINGERPRINT)
        assert self._llm.collective_rpc("drafting_connect", args=arguments) == [True]
        [runner] = self._llm.collective_rpc(lambda worker: worker.model_runner)
        proposer, propose = runner.drafter, runner.drafter.propose

        def recorded(sampled: list[list[int]], lengths: Any, *args: Any, **kwargs: Any) -> Any:
            drafts = propose(sampled, lengths, *args, **kwargs)
            for i, new in enumerate(sampled):
                if new:
                    ask_id = runner.input_batch.req_ids[i].rsplit("-", 1)[0]
                    proposal = Proposal(int(lengths[i]), drafts[i])
                    self._proposals.setdefault(ask_id, []).append(proposal)
            return drafts

        proposer.propose = recorded
        if start.patience_s is not None:
            proposer._longest_wait_s = lambda: start.patience_s

    def run(self, job: Job) -> Run:
        with self._worker(job) as worker, sampler(job.sampler):
            before = self._counts(worker)
            self._proposals.clear()
            ids = [str(self._ids + i) for i in range(len(job.asks))]
            self._ids += len(ids)
            started_s = time.monotonic()
            answers, steps = self._answer(dict(zip(ids, job.asks, strict=True)), job.kills_at)
            seconds = time.monotonic() - started_s
            until_s = time.monotonic() + PATIENCE_S
            after = self._counts(worker)
            while worker.sessions() and time.monotonic() < until_s:
                time.sleep(0.01)
                after = self._counts(worker)
            counts = after - before

            def by_source(name: str) -> dict[str, int]:
                return {key[len(name) :]: counts[key] for key in counts if key.startswith(name)}

            return Run(
                answers=[answers.get(ask_id, Answer()) for ask_id in ids],
                proposals=[self._proposals.get(ask_id, []) for ask_id in ids],
                steps=steps,
                preemptions=counts["vllm:num_preemptions"],
                drafted=counts["vllm:spec_decode_num_draft_tokens"],
                accepted=counts["vllm:spec_decode_num_accepted_tokens"],
                drafted_by=by_source("drafted "),
                accepted_by=by_source("accepted "),
                violations=counts["violations"],
                failures=counts["failures"],
                sessions=after["sessions"],
                worker_sessions=worker.sessions(),
                model=worker.model(),
                seconds=seconds,
                wait_s=counts["wait_us"] / 1e6,
            )

    def _answer(self, asks: dict[str, Ask], kills_at: int | None) -> tuple[dict[str, Answer], int]:
        answers: dict[str, Answer] = {}
        coming = sorted(asks, key=lambda ask_id: asks[ask_id].arrives_at)
        leaving = {i: ask.leaves_at for i, ask in asks.items() if ask.leaves_at is not None}
        step = 0
        while coming or self._engine.has_unfinished_requests():
            while coming and asks[coming[0]].arrives_at <= step:
                ask = asks[ask_id := coming.pop(0)]
                if ask.forget:
                    self._forget()
                prompt: dict[str, Any] = {"prompt_token_ids": ask.prompt}
                if ask.salt:
                    prompt["cache_salt"] = ask.salt
                self._engine.add_request(ask_id, prompt, sampling_params(ask))
            if step == kills_at:
                assert self._model_worker is not None, "only asked for where there is one"
                self._model_worker.kill()
            self._engine.abort_request([i for i, at in leaving.items() if at == step])
            for output in self._engine.step():
                answers[output.request_id] = Answer(
                    [list(answer.token_ids) for answer in output.outputs],
                    [answer.finish_reason for answer in output.outputs],
                    output.num_cached_tokens or 0,
                )
            step += 1
        self._engine.step()  # tells the ranks what has ended, as a served engine does
        return answers, step

    def _forget(self) -> None:
        """Empties the prefix cache, once what is stored elsewhere has let go of its blocks."""
        until_s = time.monotonic() + PATIENCE_S
        while not self._engine.reset_prefix_cache():
            assert time.monotonic() < until_s, "blocks are held for ever"
            self._engine.step()
            time.sleep(0.01)

    def _counts(self, worker: "Hired") -> Counter[str]:
        counts: Counter[str] = Counter()
        for metric in self._llm.get_metrics():
            if hasattr(metric, "value"):
                counts[metric.name] += int(metric.value)
        if not self._longest:
            return counts
        [state] = self._llm.collective_rpc("drafting_tick", args=(worker.addresses,))
        for source, account in state["sources"].items():
            counts[f"drafted {source}"] = sum(account["drafted"])
            counts[f"accepted {source}"] = sum(account["accepted"])
        counts["violations"] = sum(state["violations"].values())
        counts["failures"] = state["failures"]
        counts["sessions"] = state["sessions"]
        counts["wait_us"] = int(1e6 * state["wait_s"])
        return counts

    @contextmanager
    def _worker(self, job: Job) -> Iterator["Hired"]:
        kind = job.worker
        if kind == "none" or not self._longest:
            yield Hired([], lambda: 0)
        elif kind == "service":
            settings = ServiceSettings(
                host="127.0.0.1",
                advertised_host="127.0.0.1",
                first_port=31300,
                last_port=31400,
                vocab_size=self._vocab_size,
                memory_bytes=64 << 20,
                ahead=self._config.drafting.split.ahead,
            )
            with DraftService(settings, self._codec, make_drafters(self._config)) as service:
                yield Hired(
                    [address(kind, service.endpoint)],
                    lambda: service.stats(time.monotonic()).sessions,
                )
        elif kind == "given":
            yield Hired([address(job.endpoint, job.endpoint, ["model"])], lambda: 0)
        elif kind == "model":
            worker = self._model_worker
            assert worker is not None, "only asked for where there is one"
            kinds = (*self._config.drafting.split.workers.kinds,)
            yield Hired(
                [address(kind, worker.endpoint, kinds)],
                lambda: worker.stats()["held"] if worker.is_alive else 0,
                lambda: worker.stats()["counts"] if worker.is_alive else {},
            )
        else:
            with ScriptedWorker(self._codec, self._vocab_size) as scripted:
                scripted.script = NONSENSE[kind]
                yield Hired([address(kind, scripted.endpoint)], lambda: 0)


class Hired(msgspec.Struct):
    """A draft worker that runs: how it is announced, how many sessions it has, and what its
    model did.
    """

    addresses: list[dict[str, Any]]
    sessions: Callable[[], int]
    model: Callable[[], dict[str, int]] = dict


def nonsense(drafted: Callable[[int, int, int], list[int]]) -> Script:
    """Answers every ask with what a function of its last token, the wanted tokens and the
    vocabulary's size drafts.
    """

    def script(worker: ScriptedWorker, batch: AskBatch) -> list[bytes]:
        answer = DraftBatch(batch.step, [])
        for ask in batch.asks:
            sent = unpack_tokens(ask.appended, worker.vocab_size)
            tokens = drafted(int(sent[-1]), ask.wanted, worker.vocab_size)
            packed = pack_tokens(np.array(tokens, dtype=np.int32))
            answer.drafts.append(Draft(ask.session, ask.base + len(sent), packed, "prompt_lookup"))
        return worker.codec.pack(answer)

    return script


_random = random.Random(7)
NONSENSE: dict[Worker, Script] = {
    "random": nonsense(lambda _, wanted, size: [_random.randrange(size) for _ in range(wanted)]),
    "outside": nonsense(lambda last, _, size: [last, size]),
    "negative": nonsense(lambda last, _, __: [last, -1]),
    "long": nonsense(lambda last, _, __: [last] * MAX_DRAFT_TOKENS),
}


def address(
    worker_id: str, endpoint: str, kinds: Sequence[str] = ("prompt_lookup",)
) -> dict[str, Any]:
    return {
        "worker_id": worker_id,
        "endpoint": endpoint,
        "protocols": list(SPOKEN),
        "tokenizer_fingerprint": FINGERPRINT,
        "kinds": list(kinds),
    }


def sampling_params(ask: Ask) -> SamplingParams:
    return SamplingParams(
        n=ask.n,
        max_tokens=ask.max_tokens,
        temperature=ask.temperature,
        extra_args=dict(ask.xargs) or None,
        top_k=ask.top_k,
        ignore_eos=ask.schema is None,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        structured_outputs=StructuredOutputsParams(json=ask.schema) if ask.schema else None,
    )


@contextmanager
def sampler(kind: Sampler) -> Iterator[None]:
    """vLLM's rejection sampler, or one that is wrong."""

    def no_chance_to_reject(tokens: int, *_: Any) -> torch.Tensor:
        return torch.zeros(tokens, dtype=torch.float64)

    def from_the_target(*args: Any) -> torch.Tensor:
        target_probabilities = args[5]
        return torch.multinomial(target_probabilities, 1).squeeze(1)

    wrong = {
        "accepts_all": ("generate_uniform_probs", no_chance_to_reject),
        "resamples_from_target": ("sample_recovered_tokens", from_the_target),
    }
    if kind == "vllm":
        yield
        return
    name, function = wrong[kind]
    right = getattr(rejection_sampler, name)
    setattr(rejection_sampler, name, function)
    yield
    setattr(rejection_sampler, name, right)


def main(asks: BinaryIO, answers: BinaryIO) -> None:
    engine = Engine(msgspec.json.decode(asks.readline(), type=Start))
    for line in asks:
        run = engine.run(msgspec.json.decode(line, type=Job))
        answers.write(msgspec.json.encode(run) + b"\n")
        answers.flush()


if __name__ == "__main__":
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what vLLM prints is for the log
    main(sys.stdin.buffer, replies)
    # The test is over; nothing here is worth tearing down in order.
    os._exit(0)
