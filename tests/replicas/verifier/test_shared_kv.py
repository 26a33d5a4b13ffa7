"""Engines that share blocks by real LMCache and Redis answer as one that does not, token for token.

In float32, with drafts, and whatever happens to LMCache meanwhile. What comes back is compared
byte for byte in tests/kvstore/test_blocks_in_lmcache.py; here it is what engines make of it.
"""

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from engine_process import Answer, Ask, EngineProcess, Run
from lmcache_server import LmcacheServer
from redis_server import RedisServer
from tiny_models import make_tiny_llama

from kvstore.kv_identity import kv_format, source_fingerprint
from replicas.verifier.policy import FrontDoorPolicy

CHUNK, PROMPT, TOKENS = 64, 300, 12
FOUND = PROMPT // CHUNK * CHUNK
"""Tokens of a prompt in whole chunks."""
SALT, OTHER_SALT = "ab" * 32, "cd" * 32
NAMES = ("plain", "lost", "spoiled", "drafted", "while away", "back")
PATIENCE_S = 90.0
PATIENT = {"wait_max_ms": 1000.0, "wait_fraction": 1.0}
"""Drafts are waited for, so that they depend on no timing."""


def ask(name: str, **changes: object) -> Ask:
    """A prompt of that name, the same in every engine; half of it repeats, for drafts."""
    rng = random.Random(name)
    half = [rng.randrange(3, 500) for _ in range(PROMPT // 2)]
    known = {"prompt": half + half, "max_tokens": TOKENS, "salt": SALT, "forget": True}
    return Ask(**{**known, **changes})  # type: ignore[arg-type]


def wait_for(what: Callable[[], bool], told: str) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < until_s, told
        time.sleep(0.1)


class House:
    """Redis, LMCache before it, and engines that share by them."""

    def __init__(self, folder_of: pytest.TempPathFactory) -> None:
        self._folder_of = folder_of
        self.model = make_tiny_llama(folder_of.mktemp("model") / "tiny")
        self.redis = RedisServer(folder_of.mktemp("redis"))
        self.redis.start()
        self.lmcache = LmcacheServer(folder_of.mktemp("lmcache"), ({"kind": "redis"},), self.redis)
        self.lmcache.start()

    def engine(self, max_length: int = 0) -> EngineProcess:
        log = self._folder_of.mktemp("engine") / "log"
        return EngineProcess(self.model, log, max_length, PATIENT, **self.lmcache.engine_args)

    def values(self) -> set[bytes]:
        """Names of what lies in Redis."""
        with self.redis.client() as client:
            return set(client.scan_iter("paceline:*:kv:*"))

    def computed(self, engine: EngineProcess, name: str) -> set[bytes]:
        """Has an engine compute a prompt, and returns what that put into Redis."""
        before = self.values()
        assert one(engine, ask(name)).cached_tokens == 0
        wait_for(lambda: len(self.values() - before) >= FOUND // CHUNK, "nothing went to Redis")
        return self.values() - before

    def close(self) -> None:
        self.lmcache.kill()
        self.redis.kill()


def one(engine: EngineProcess, what: Ask) -> Answer:
    [answer] = engine.run([what]).answers
    return answer


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    made = House(tmp_path_factory)
    yield made
    made.close()


@pytest.fixture(scope="module")
def right(house: House, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[int]]:
    """What an engine without shared KV answers to a prompt."""
    with EngineProcess(house.model, tmp_path_factory.mktemp("plain") / "log") as plain:
        run = plain.run([ask(name, forget=False) for name in NAMES])
    known = {name: tokens for name, [tokens] in zip(NAMES, run.tokens, strict=True)}
    return known.__getitem__


@pytest.fixture(scope="module")
def left(house: House) -> dict[str, set[bytes]]:
    """An engine computes prompts and is gone; what each left in Redis."""
    with house.engine() as engine:
        return {name: house.computed(engine, name) for name in ("plain", "lost", "spoiled")}


@pytest.fixture(scope="module")
def engine(house: House, left: dict[str, set[bytes]]) -> Iterator[EngineProcess]:
    """Another one, which drafts."""
    with house.engine(max_length=4) as engine:
        yield engine


def test_what_one_engine_computed_another_finds_when_the_first_is_gone(
    engine: EngineProcess, right: Callable[[str], list[int]]
) -> None:
    """In LMCache's memory; the answer is the same."""
    answer = one(engine, ask("plain"))
    assert answer.cached_tokens >= FOUND - 1
    assert answer.tokens == [right("plain")]


def test_another_tenants_prompt_is_not_found(
    engine: EngineProcess, right: Callable[[str], list[int]]
) -> None:
    """The same tokens under another salt are computed."""
    stranger = one(engine, ask("plain", salt=OTHER_SALT))
    assert (stranger.cached_tokens, stranger.tokens) == (0, [right("plain")])


def test_redis_remembers_what_memory_has_lost(
    house: House, engine: EngineProcess, right: Callable[[str], list[int]]
) -> None:
    """The answer is the same by that way, too."""
    house.lmcache.empty_memory()
    answer = one(engine, ask("lost"))
    assert answer.cached_tokens >= FOUND - 1
    assert answer.tokens == [right("lost")]


def test_a_flipped_bit_in_redis_is_computed_over(
    house: House,
    engine: EngineProcess,
    left: dict[str, set[bytes]],
    right: Callable[[str], list[int]],
) -> None:
    """Never a wrong answer."""
    with house.redis.client() as client:
        for name in left["spoiled"]:
            middle = client.strlen(name) // 2
            byte = client.getrange(name, middle, middle)
            client.setrange(name, middle, bytes([byte[0] ^ 1]))
    house.lmcache.empty_memory()
    answer = one(engine, ask("spoiled"))
    assert (answer.cached_tokens, answer.tokens) == (0, [right("spoiled")])


def test_drafts_are_accepted_after_a_fetch_as_after_computing(
    house: House, engine: EngineProcess, right: Callable[[str], list[int]]
) -> None:
    """The same proposals, and the same of them accepted."""

    def drafted(run: Run) -> tuple[object, ...]:
        return run.proposals, run.drafted, run.accepted, run.tokens

    before = house.values()
    computed = engine.run([ask("drafted")])
    wait_for(lambda: len(house.values() - before) >= FOUND // CHUNK, "nothing was stored")
    fetched = engine.run([ask("drafted")])
    assert computed.answers[0].cached_tokens == 0
    assert fetched.answers[0].cached_tokens >= FOUND - 1
    assert drafted(computed) == drafted(fetched)
    assert fetched.tokens == [[right("drafted")]]
    assert fetched.drafted > 0


def test_no_shared_block_holds_a_draft_that_was_rejected(
    house: House, engine: EngineProcess
) -> None:
    """An answer among wrong drafts, asked on as a prompt: through memory, and through Redis, as in
    an engine that finds nothing.
    """
    before = house.values()
    first = engine.run([ask("wrong drafts", max_tokens=100)], worker="random")
    assert first.drafted > 50
    longer = ask("wrong drafts").prompt + first.tokens[0][0]
    known = [one(engine, ask("", prompt=longer)) for _ in range(2)]
    chunks = len(longer) // CHUNK
    wait_for(lambda: len(house.values() - before) >= chunks, "nothing was stored")
    house.lmcache.empty_memory()
    known.append(one(engine, ask("", prompt=longer)))
    cold = one(engine, ask("", prompt=longer, salt=OTHER_SALT))
    assert cold.cached_tokens == 0
    assert all(answer.cached_tokens >= chunks * CHUNK - 1 for answer in known[1:])
    assert all(answer.tokens == cold.tokens for answer in known)


def test_an_engine_serves_on_while_lmcache_is_gone_and_finds_it_again(
    house: House, engine: EngineProcess, right: Callable[[str], list[int]]
) -> None:
    """It computes meanwhile."""
    house.lmcache.kill()
    away = one(engine, ask("while away"))
    assert (away.cached_tokens, away.tokens) == (0, [right("while away")])
    house.lmcache.start()
    before = len(house.values())

    def stores() -> bool:
        one(engine, ask(f"found again {time.monotonic_ns()}"))
        return len(house.values()) > before

    wait_for(stores, "the engine does not come back to LMCache")
    house.computed(engine, "back")
    answer = one(engine, ask("back"))
    assert answer.cached_tokens >= FOUND - 1
    assert answer.tokens == [right("back")]


def test_swapped_weights_find_nothing_of_the_ones_before(
    house: House, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Two verifiers at work, one started before its weights were swapped and one after: each
    answers by its own, for the same prompts and at the same path.
    """
    model = make_tiny_llama(tmp_path_factory.mktemp("swapped") / "tiny")
    others = make_tiny_llama(tmp_path_factory.mktemp("others") / "tiny", seed=1)
    names = [f"swapped {number}" for number in range(8)]

    def salt() -> str:
        policy = FrontDoorPolicy(
            512, source_fingerprint(str(model)), kv_format(house.lmcache.config)
        )
        return policy.salt_for(policy.domain_of("ada"), "m")

    def answers(engine: EngineProcess, salt: str) -> list[Answer]:
        """Whatever was found, all of it in an engine that has forgotten everything."""
        return [one(engine, ask(name, salt=salt)) for name in names]

    with ExitStack() as engines, ThreadPoolExecutor(2) as pool:

        def start() -> EngineProcess:
            log = tmp_path_factory.mktemp("engine") / "log"
            return engines.enter_context(EngineProcess(model, log, **house.lmcache.engine_args))

        old, old_salt = start(), salt()
        first = answers(old, old_salt)
        (others / "model.safetensors").replace(model / "model.safetensors")
        new, new_salt = start(), salt()
        once = answers(new, new_salt)
        again = [pool.submit(answers, *of) for of in ((old, old_salt), (new, new_salt))]
        fetched = [each.result() for each in again]
        # LMCache itself would have given the new ones the old ones' blocks.
        mixed = answers(new, old_salt)
    assert [answer.cached_tokens for answer in first + once] == [0] * 16
    assert all(answer.cached_tokens >= FOUND - 1 for answer in fetched[0] + fetched[1] + mixed)
    tokens = [[answer.tokens for answer in of] for of in (first, once, *fetched, mixed)]
    assert tokens[0] == tokens[2]
    assert tokens[1] == tokens[3]
    assert tokens[0] != tokens[1]
    assert tokens[4] != tokens[1]
