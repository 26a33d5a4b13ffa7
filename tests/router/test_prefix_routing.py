"""One router's knowledge put together: reading, matching, deciding, remembering."""

import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tiny_models import make_tiny_llama

from kvstore.fingerprint import weights_fingerprint
from kvstore.hashing import root_hash
from kvstore.keys import cache_salt, parse_keys, sharing_domain
from kvstore.kv_messages import LoadReport
from router.prefix_routing import PrefixRouting
from router.reading import AFFINITY_BLOCKS
from router.routing_settings import PrefixSettings
from router.tenants import Tenants, TenantSettings

BLOCK = 16
NOBODY: dict[str, dict[str, Any]] = {}
TWO: dict[str, dict[str, Any]] = {"v": {}, "w": {}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder."""
    return make_tiny_llama(tmp_path_factory.mktemp("model") / "tiny", layers=1)


@pytest.fixture
async def routing(folder: Path) -> AsyncIterator[PrefixRouting]:
    """A router of a plain Serve application, loaded."""
    settings = PrefixSettings.from_kwargs(source=str(folder), model="m", block_tokens=BLOCK)
    routing = PrefixRouting(settings)
    await routing.started()
    yield routing
    await routing.close()


def body(text: str) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}]}


async def test_before_it_is_loaded_it_routes_by_load(folder: Path) -> None:
    """At once, with a reason, in turns."""
    routing = PrefixRouting(PrefixSettings.from_kwargs(source=str(folder), model="m"))
    reading = await routing.read(body("hi"), "")
    assert reading.reason == "not_ready"
    firsts = [routing.decide(reading, TWO, 1.0).ranking.replica_ids[0] for _ in range(6)]
    assert Counter(firsts) == {"v": 3, "w": 3}


async def test_what_cannot_be_loaded_is_done_without(tmp_path: Path) -> None:
    """No tokenizer, no knowledge, but routes."""
    routing = PrefixRouting(PrefixSettings.from_kwargs(source=str(tmp_path / "none"), model="m"))
    await routing.started()
    reading = await routing.read(body("hi"), "")
    assert reading.reason == "not_ready"
    assert len(routing.decide(reading, TWO, 1.0).ranking.replica_ids) == 2
    await routing.close()


async def test_a_prefix_stays_together_and_different_ones_are_spread(
    routing: PrefixRouting,
) -> None:
    """With no knowledge of caches at all, by consistent hashing."""
    places: dict[str, set[str]] = {}
    for turn in range(3):
        for topic in "abcdefghijklmnop":
            reading = await routing.read(body(f"{topic * 100} {turn}"), "")
            assert reading.chain
            decision = routing.decide(reading, TWO, 100.0 * turn)
            places.setdefault(topic, set()).add(decision.ranking.replica_ids[0])
            routing.ledger.load("v", 0, 1e9, 1e9)  # all reported, nothing queued
            routing.ledger.load("w", 0, 1e9, 1e9)
    assert all(len(place) == 1 for place in places.values())
    assert len({next(iter(place)) for place in places.values()}) == 2


@pytest.fixture
def all_known(routing: PrefixRouting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every prompt is read whole."""
    monkeypatch.setattr(routing._reader, "_is_known", lambda _: True)


@pytest.mark.usefixtures("all_known")
async def test_long_prompts_are_read_in_a_thread(routing: PrefixRouting) -> None:
    """To the same tokens."""
    reading = await routing.read(body("x" * 40_000), "")
    assert reading.prompt_tokens > 40_000
    assert len(reading.chain) == reading.prompt_tokens // BLOCK


@pytest.mark.parametrize(
    ("request_body", "reason"),
    [(None, "no_body"), ({"model": "other", "prompt": "hi"}, "unknown_caller"), ({}, "no_prompt")],
)
async def test_what_cannot_be_known_has_a_reason(
    routing: PrefixRouting, request_body: dict[str, Any] | None, reason: str
) -> None:
    """For the metric; the request is routed all the same."""
    reading = await routing.read(request_body, "")
    assert reading.reason == reason
    assert routing.decide(reading, TWO, time.time()).ranking.replica_ids


@pytest.mark.parametrize(("tier", "best"), [("auto", "v"), ("flex", "w")])
async def test_prompts_that_can_wait_are_ahead_of_their_like_only(
    routing: PrefixRouting, monkeypatch: pytest.MonkeyPatch, tier: str, best: str
) -> None:
    """The longer queue is the shorter one for those who go first."""
    told = LoadReport(3, 9000, 0.01, 0.001, 0, 0, at_s=1.0, queued_batch_tokens=9000)
    less = msgspec.structs.replace(told, queued_tokens=2000, queued_batch_tokens=0)
    monkeypatch.setattr(routing, "_report", {"v": told, "w": less}.get)
    reading = await routing.read(body("hi") | {"service_tier": tier}, "")
    assert routing.decide(reading, TWO, 2.0).ranking.replica_ids[0] == best


async def test_nobody_is_an_answer(routing: PrefixRouting) -> None:
    """An empty ranking, and no pick remembered."""
    decision = routing.decide(await routing.read(body("hi"), ""), NOBODY, 1.0)
    assert decision.ranking.replica_ids == ()


async def test_a_plain_application_needs_no_more_than_a_folder(folder: Path) -> None:
    """No Redis, no token, no keys."""
    ready = PrefixSettings.from_kwargs(source=str(folder), model="m").load()
    assert ready.codec is None
    assert ready.tenants.weights_fingerprint == weights_fingerprint(folder)


def tenants(**changes: Any) -> TenantSettings:
    return TenantSettings(
        **{
            "model": "m",
            "adapters": {"lora": "-l"},
            "weights_fingerprint": "w",
            "kv_format": "auto",
            "block_tokens": BLOCK,
            "keys": parse_keys("ada key-of-ada\nbob key-of-bob"),
            "domain_secret": b"secret",
            **changes,
        }
    )


def test_roots_are_by_tenant_and_adapter_as_the_front_door_salts() -> None:
    """The same derivation from the same table."""
    known = Tenants(tenants())
    salt = cache_salt(sharing_domain("ada", b"secret"), "lora", "w-l", "auto")
    assert known.root_of("lora", "Bearer key-of-ada") == root_hash("w", "lora", salt, BLOCK)
    roots = {
        known.root_of(model, f"Bearer {key}")
        for model in ("m", "lora")
        for key in ("key-of-ada", "key-of-bob")
    }
    assert len(roots) == 4


@pytest.mark.parametrize("key", ["", "Bearer", "Bearer nobodys", "Basic key-of-ada", "key-of-ada"])
def test_who_is_not_known_has_no_root(key: str) -> None:
    """Nothing can be warm for them; the front door says the rest."""
    assert Tenants(tenants()).root_of("m", key) is None
    assert Tenants(tenants()).root_of("other", "Bearer key-of-ada") is None
    assert Tenants(tenants()).root_of(["m"], "Bearer key-of-ada") is None


def test_without_keys_everybody_is_one_tenant() -> None:
    """Whatever key they bring."""
    known = Tenants(tenants(keys=None, domain_secret=b""))
    assert known.root_of("m", "") == known.root_of("m", "Bearer whatever")
    assert known.root_of("m", "") is not None


def test_settings_hold_no_secret_that_shows() -> None:
    """Nor do their representations."""
    assert "secret" not in repr(tenants())
    assert "key-of-ada" not in repr(tenants())


def test_keys_come_in_the_header_that_the_router_is_shown() -> None:
    """`x-api-key` holds the key alone; a bearer key in it is none."""
    known = Tenants(tenants(key_header="x-api-key"))
    assert known.root_of("m", "key-of-ada") == Tenants(tenants()).root_of("m", "Bearer key-of-ada")
    assert known.root_of("m", "Bearer key-of-ada") is None


MEDIA = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}


@pytest.mark.parametrize("by_header", [True, False])
async def test_a_session_stays_together_where_its_tokens_are_not_known(
    routing: PrefixRouting, by_header: bool
) -> None:
    """By header or `prompt_cache_key`; different sessions are spread."""
    places: dict[str, set[str]] = {}
    for turn in range(3):
        for session in "abcdefghijkl":
            request = {"model": "m", "messages": [MEDIA]}
            request |= {} if by_header else {"prompt_cache_key": session}
            reading = await routing.read(request, session if by_header else "")
            assert (reading.reason, reading.session) == ("media", session)
            decision = routing.decide(reading, TWO, 100.0 * (turn + 1))
            places.setdefault(session, set()).add(decision.ranking.replica_ids[0])
            for name in TWO:
                routing.ledger.load(name, 0, 1e9, 1e9)  # all reported, nothing queued
    assert all(len(place) == 1 for place in places.values())
    assert len({next(iter(place)) for place in places.values()}) == 2


async def test_a_request_says_that_it_can_wait(routing: PrefixRouting) -> None:
    """By OpenAI's `service_tier`."""
    assert (await routing.read(body("hi"), "")).request_class == "interactive"
    assert (await routing.read(body("hi") | {"service_tier": "flex"}, "")).request_class == "batch"


@pytest.mark.usefixtures("all_known")
async def test_a_body_that_is_cut_matches_as_far_as_it_is_there(routing: PrefixRouting) -> None:
    """Its blocks are those of the whole; its length is what the part makes of it."""
    whole = await routing.read(body("x y z " * 200), "")
    half = {"messages": [{"role": "user", "content": "x y z " * 100}]}  # the model comes later
    seen = await routing.read(half, "", part=0.5)
    blocks = len(seen.chain) - 2  # At its end stands what ends a message.
    assert blocks > 20
    assert list(seen.chain)[:blocks] == list(whole.chain)[:blocks]
    assert seen.prompt_tokens == pytest.approx(whole.prompt_tokens, rel=0.1)


@pytest.mark.parametrize("completion", [False, True])
async def test_of_a_prompt_that_is_warm_nowhere_only_the_beginning_is_read(
    routing: PrefixRouting, completion: bool
) -> None:
    """Its first blocks are those of the whole; once one like it was sent, all of it is read."""
    text = " ".join(f"word {n}" for n in range(3000))
    request = {"model": "m", "prompt": text} if completion else body(text)
    first = await routing.read(request, "")
    now_s = time.time()
    chosen = routing.decide(first, TWO, now_s).ranking.replica_ids[0]
    whole = await routing.read(request, "")
    assert AFFINITY_BLOCKS <= len(first.chain) < len(whole.chain) / 10
    assert list(whole.chain)[: len(first.chain)] == list(first.chain)
    assert whole.prompt_tokens // BLOCK == len(whole.chain)
    assert routing.decide(whole, TWO, now_s).ranking.replica_ids[0] == chosen
    # How long the next cold one is, is known from this one.
    other = await routing.read(request | {"user": "u"} if completion else body(f"x {text}"), "")
    assert other.prompt_tokens == pytest.approx(whole.prompt_tokens, rel=0.05)


async def test_what_a_verifier_holds_is_read_whole(routing: PrefixRouting) -> None:
    """From its first block on, in whatever tier."""
    request = body("z " * 4000)
    first = await routing.read(request, "")
    routing.index.replace("v", {"storage": {first.chain[0]}})
    whole = await routing.read(request, "")
    assert len(whole.chain) > 10 * len(first.chain)
    assert whole.chain[0] == first.chain[0]
