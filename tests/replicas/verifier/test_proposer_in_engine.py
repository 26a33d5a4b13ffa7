"""Greedy answers of a whole engine are the same tokens with split drafting and without.

A float32 engine without speculation says what is right. Beside it run two that draft, one
with room for everything but long prompts at once, one with too small a KV cache; what is
asked of them is what has broken proposers before.
"""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from engine_process import CONTEXT, VOCABULARY, Ask, EngineProcess, Run, Worker

LONGEST_DRAFT, BATCHED_TOKENS = 4, 128
BLOCKS = 24
"""Of 32 tokens, in the small KV cache: three whole contexts."""
FIRST_TOKEN = 3
"""The ones before it end answers."""


@pytest.fixture(scope="module")
def drafting(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """Drafts, and computes longer prompts than `BATCHED_TOKENS` in chunks."""
    with EngineProcess(
        tiny,
        tmp_path_factory.mktemp("drafting") / "log",
        LONGEST_DRAFT,
        {"shortest_match": 1},
        max_model_len=CONTEXT,
        max_num_batched_tokens=BATCHED_TOKENS,
        max_num_seqs=24,
    ) as process:
        yield process


@pytest.fixture(scope="module")
def cramped(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """Drafts only what workers say, in a KV cache for three whole contexts."""
    with EngineProcess(
        tiny,
        tmp_path_factory.mktemp("cramped") / "log",
        LONGEST_DRAFT,
        {"shortest_match": 1, "local_lookup": False},
        max_model_len=CONTEXT,
        num_gpu_blocks_override=BLOCKS,
        max_num_seqs=24,
    ) as process:
        yield process


@pytest.fixture(scope="module")
def governed(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """As `drafting`, and the governor decides how long each draft is."""
    with EngineProcess(
        tiny,
        tmp_path_factory.mktemp("governed") / "log",
        LONGEST_DRAFT,
        {"shortest_match": 1},
        governor="auto",
        max_model_len=CONTEXT,
        max_num_batched_tokens=BATCHED_TOKENS,
        max_num_seqs=24,
    ) as process:
        yield process


Same = Callable[..., Run]


@pytest.fixture
def same(plain: EngineProcess) -> Same:
    """Runs asks in an engine that drafts; its answers are those of the plain one."""

    def run(engine: EngineProcess, asks: list[Ask], worker: Worker = "service") -> Run:
        alone = [msgspec.structs.replace(ask, arrives_at=0, leaves_at=None) for ask in asks]
        right, drafted = plain.run(alone), engine.run(asks, worker)
        for ask, one, other in zip(asks, right.answers, drafted.answers, strict=True):
            if ask.leaves_at is None:
                assert other.tokens == one.tokens
                assert other.finish_reasons == one.finish_reasons
        assert right.drafted == drafted.failures == 0
        assert drafted.drafted == sum(drafted.drafted_by.values())
        assert drafted.accepted == sum(drafted.accepted_by.values())
        assert drafted.sessions == drafted.worker_sessions == 0
        return drafted

    return run


def prompt(seed: int, length: int, period: int = 12) -> list[int]:
    """Tokens that begin again after `period`."""
    generator = random.Random(seed)
    once = [generator.randrange(FIRST_TOKEN, VOCABULARY) for _ in range(period)]
    return [once[i % period] for i in range(length)]


def test_rows_that_come_go_and_move_keep_their_drafts(drafting: EngineProcess, same: Same) -> None:
    """Forty requests of all lengths, for at most 24 places, that begin and end at any step."""
    asks = [
        Ask(prompt=prompt(i, 5 + 37 * i % 90), max_tokens=5 + 29 * i % 70, arrives_at=i // 2)
        for i in range(40)
    ]
    assert same(drafting, asks).accepted_from_workers > 100


def test_lengths_of_the_governor_change_no_answer(governed: EngineProcess, same: Same) -> None:
    """Whatever it chooses from step to step, with prompts in chunks and requests that come and
    go; its sequences are told apart as its sessions are.
    """
    asks = [
        Ask(prompt=prompt(20 + i, 5 + 61 * i % 180), max_tokens=5 + 29 * i % 70, arrives_at=i // 2)
        for i in range(40)
    ]
    run = same(governed, asks)
    assert run.drafted > 0
    assert all(len(p.draft) <= LONGEST_DRAFT for ps in run.proposals for p in ps)


def test_a_request_drafts_as_much_as_it_asks_for(governed: EngineProcess, same: Same) -> None:
    """`off` and 0: nothing; a number: never more; the answers stay the same."""
    wishes: list[str | int] = ["off", 0, 1, 2, "auto"]
    asks = [
        Ask(prompt=prompt(60, 40), max_tokens=60, xargs={"paceline_speculation": wish})
        for wish in wishes
    ]
    run = same(governed, asks)
    longest = [max(len(p.draft) for p in proposals) for proposals in run.proposals]
    assert longest[:4] == [0, 0, 1, 2]


def test_a_preempted_sequence_goes_on_with_drafts(cramped: EngineProcess, same: Same) -> None:
    """Sequences that lose their KV and come back say the same, and are drafted for again."""
    asks = [Ask(prompt=prompt(100 + i, 30 + i), max_tokens=150) for i in range(10)]
    run = same(cramped, asks)
    assert run.preemptions > 0
    assert run.accepted_from_workers > 100


def test_long_prompts_are_computed_in_chunks_beside_drafted_rows(
    drafting: EngineProcess, same: Same
) -> None:
    """Prompts longer than a step's tokens take several steps, in which others are drafted for."""
    short = [Ask(prompt=prompt(200 + i, 20), max_tokens=60) for i in range(6)]
    long = [
        Ask(prompt=prompt(210 + i, BATCHED_TOKENS + 60), max_tokens=30, arrives_at=5 + i)
        for i in range(4)
    ]
    run = same(drafting, short + long)
    assert run.accepted_from_workers > 100
    # Not one proposal was made inside of a prompt.
    for ask, proposals in zip(short + long, run.proposals, strict=True):
        assert proposals[0].length == len(ask.prompt) + 1


def test_several_answers_to_one_prompt_are_sessions_of_their_own(
    drafting: EngineProcess, plain: EngineProcess
) -> None:
    """n = 3, sampled with top_k = 1, is three times the greedy answer."""
    greedy = [Ask(prompt=prompt(300 + i, 40), max_tokens=50) for i in range(4)]
    asks = [msgspec.structs.replace(ask, n=3, temperature=1.0, top_k=1) for ask in greedy]
    run = drafting.run(asks)
    right = plain.run(greedy)
    assert run.tokens == [tokens * 3 for tokens in right.tokens]
    assert run.accepted_from_workers > 100
    assert run.sessions == run.worker_sessions == 0


def test_prefix_cache_hits_change_nothing(drafting: EngineProcess, same: Same) -> None:
    """The same prompts again, their KV being there; drafts are accepted as before."""
    asks = [Ask(prompt=prompt(400 + i, 100), max_tokens=40) for i in range(4)]
    first, second = same(drafting, asks), same(drafting, asks)
    assert all(answer.cached_tokens == 0 for answer in first.answers)
    assert all(answer.cached_tokens >= 96 for answer in second.answers)
    assert first.accepted_from_workers > 20
    assert second.accepted_from_workers > 20


def test_max_tokens_is_reached_exactly(drafting: EngineProcess, same: Same) -> None:
    """No answer is longer, and nothing is proposed that could not be of use."""
    asks = [Ask(prompt=prompt(500 + i, 40), max_tokens=i) for i in range(1, 33)]
    run = same(drafting, asks)
    for ask, answer, proposals in zip(asks, run.answers, run.proposals, strict=True):
        assert ask.max_tokens == len(answer.tokens[0])
        assert answer.finish_reasons == ["length"]
        end = len(ask.prompt) + ask.max_tokens
        assert all(proposal.length + len(proposal.draft) < end for proposal in proposals[:-1])
        assert proposals[-1].draft == []
    assert run.accepted_from_workers > 20


def test_answers_end_where_the_context_does(drafting: EngineProcess, same: Same) -> None:
    """Up to the last token of the context, beside rows that are far from it and drafted for."""
    full = [Ask(prompt=prompt(600 + i, CONTEXT - 1 - 7 * i), max_tokens=None) for i in range(6)]
    others = [Ask(prompt=prompt(610 + i, 20), max_tokens=80) for i in range(4)]
    run = same(drafting, full + others)
    for ask, answer in zip(full, run.answers, strict=False):
        assert len(ask.prompt) + len(answer.tokens[0]) == CONTEXT
        assert answer.finish_reasons == ["length"]
    assert run.accepted_from_workers > 50


def test_nothing_is_verified_that_nobody_drafted(cramped: EngineProcess, same: Same) -> None:
    """Without any worker no token counts as drafted, near the end of the context either."""
    asks = [Ask(prompt=prompt(700 + i, CONTEXT - 12 - i), max_tokens=None) for i in range(3)]
    run = same(cramped, asks, worker="none")
    assert run.drafted == 0


def test_requests_that_left_are_forgotten(drafting: EngineProcess, same: Same) -> None:
    """Half of the requests leave, some of them before their first token; none is remembered."""
    asks = [
        Ask(
            prompt=prompt(800 + i, 10 + 20 * i),
            max_tokens=60,
            arrives_at=i,
            leaves_at=i + 1 + i // 2 if i % 2 else None,
        )
        for i in range(10)
    ]
    run = same(drafting, asks)
    assert run.accepted_from_workers > 50


def test_drafts_that_break_a_grammar_are_cut(drafting: EngineProcess, same: Same) -> None:
    """JSON by a schema after a prompt in which other things follow each brace and quote."""
    quoted = [ord(c) for c in '{} "}{ ":: ,,"x} {']
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    byte_token = byte_tokens()
    asks = [
        Ask(
            prompt=[byte_token[byte] for byte in quoted * 3] + prompt(900 + i, 12),
            max_tokens=60,
            schema=schema,
        )
        for i in range(4)
    ]
    free = [Ask(prompt=prompt(910 + i, 20), max_tokens=60) for i in range(4)]
    run = same(drafting, asks + free)
    proposed = [sum(len(p.draft) for p in proposals) for proposals in run.proposals]
    assert sum(proposed[: len(asks)]) > 0
    assert sum(proposed) > run.drafted
    assert run.accepted_from_workers > 50


def byte_tokens() -> dict[int, int]:
    """Byte -> token, of the tiny model's tokenizer."""
    from tiny_models import SPECIAL_TOKENS
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return {ord(c): len(SPECIAL_TOKENS) + i for i, c in enumerate(alphabet)} | {
        ord(" "): len(SPECIAL_TOKENS) + alphabet.index("Ġ")
    }


@pytest.mark.parametrize("worker", ["random", "outside", "negative", "long"])
def test_a_worker_that_drafts_nonsense_costs_drafts_only(
    drafting: EngineProcess, same: Same, worker: Worker
) -> None:
    """Answers stay the same and the engine alive, whatever a worker says."""
    asks = [Ask(prompt=prompt(1000 + i, 20 + i), max_tokens=40, arrives_at=i) for i in range(8)]
    run = same(drafting, asks, worker)
    drafted = sum(n for source, n in run.drafted_by.items() if source.startswith("worker:"))
    if worker in ("outside", "negative"):
        assert run.violations > 0
        assert drafted == 0
        assert run.accepted_by["local:prompt_lookup"] > 0
    else:
        assert run.violations == 0
        assert drafted > 100
        assert all(len(p.draft) <= LONGEST_DRAFT for ps in run.proposals for p in ps)
