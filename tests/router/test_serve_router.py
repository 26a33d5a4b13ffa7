"""The adapters to Ray Serve's request router, without Ray: what they make of its objects."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_models import make_tiny_llama

from router.serve_router import LeastLoadedRouter, PrefixAwareRouter
from router.types import RoutingNote


def replica(name: str, **stats: Any) -> Any:
    """As Serve shows one to a router."""
    return SimpleNamespace(replica_id=SimpleNamespace(unique_id=name), routing_stats=stats)


def pending(body: dict[str, Any] | None, authorization: str = "") -> Any:
    """As Serve shows a request to a router."""
    args = () if body is None else (SimpleNamespace(**body),)
    return SimpleNamespace(args=args, metadata=SimpleNamespace(session_id=authorization))


def noted(is_wanted: bool) -> tuple[Any, RoutingNote]:
    """A request that could not be read, with a note."""
    note = RoutingNote(is_wanted)
    return SimpleNamespace(args=(None, note), metadata=SimpleNamespace(session_id="")), note


# They report after every pick, so that nothing is queued.
REPLICAS = [replica(name, in_flight=0, at_s=4e9) for name in "vw"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("model") / "tiny", layers=1)


async def test_the_prefix_aware_router_ranks_all_before_and_after_it_is_ready(
    folder: Path,
) -> None:
    """From the first request on; a conversation stays where it is once tokens are known."""
    router = PrefixAwareRouter.__new__(PrefixAwareRouter)
    router.initialize_state(source=str(folder), model="m", block_tokens=16)
    assert router._routing._loading is None, "nothing starts before a request comes"
    body = {"model": "m", "messages": [{"role": "user", "content": "hello " * 50}]}
    for request in (pending(body), pending(None), None):
        groups = await router.choose_replicas(REPLICAS, request)
        assert sorted(group[0].replica_id.unique_id for group in groups) == ["v", "w"]
    await router._routing.started()
    firsts = set()
    for _ in range(5):
        groups = await router.choose_replicas(REPLICAS, pending(body, "Bearer x"))
        firsts.add(groups[0][0].replica_id.unique_id)
    assert len(firsts) == 1
    assert await router.choose_replicas([], pending(body)) == []
    router._prefix_metrics._look()
    await router._prefix_metrics.close()
    await router._routing.close()


async def test_the_least_loaded_router_ranks_by_what_replicas_report() -> None:
    """Fewest in flight first."""
    router = LeastLoadedRouter.__new__(LeastLoadedRouter)
    router.initialize_state()
    busy, idle = replica("v", in_flight=9, at_s=1.0), replica("w", in_flight=1, at_s=1.0)
    groups = await router.choose_replicas([busy, idle], pending(None))
    assert groups == [[idle], [busy]]


async def test_a_decision_is_explained_where_that_is_wanted() -> None:
    """In one line of ASCII that can stand in a header, and in HAProxy's script."""
    router = LeastLoadedRouter.__new__(LeastLoadedRouter)
    router.initialize_state()
    request, note = noted(is_wanted=True)
    (first,), *_ = await router.choose_replicas(REPLICAS, request)
    assert note.text.startswith(f"{first.replica_id.unique_id}, fewest in flight")
    assert note.text.isascii()
    assert note.text.isprintable()
    assert not set(note.text) & set('"{}')
    request, note = noted(is_wanted=False)
    await router.choose_replicas(REPLICAS, request)
    assert note.text == ""
