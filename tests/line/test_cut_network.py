"""Machines with a network between them, and that network cut: for seconds, and for good.

Each node has a network namespace of its own, joined by a bridge, so that what is cut is silent:
no connection is refused and none is reset.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from lines import PORTS, Line, Lines, base_config
from ray_nodes import RayNodes
from redis_server import RedisServer
from streams import ANSWER_S, SUBJECTS, Clients, said_by, story_of, verifier_of
from waiting import until
from wires import HERE, Wires, need_namespaces

pytestmark = [pytest.mark.line, pytest.mark.long]

BLIP_S = 3.0
"""Shorter than Ray takes to give a node up."""
GONE_S = 90.0
"""In which Ray gives a node up, and a verifier's last report has long run out."""
OVER_S = 300.0
"""In which the streams of a machine that is gone break off: when HAProxy's process of before the
loss ends, `longest_stream_s` and a minute after Ray has given the node up.
"""
NO_VERIFIER = 404
"""Says the node's router, on a port beside the verifier's."""
ASK_S = 20.0
"""In which a request is answered while a verifier is silent: HAProxy tries to connect for five
seconds, and then asks another.
"""


@dataclass
class Machines:
    """Two nodes with a verifier each, and a draft worker on one of them."""

    wires: Wires
    line: Line
    clients: Clients
    near: str
    """Address of the node with the draft worker."""
    far: str

    def verifier_at(self, address: str) -> dict[str, Any]:
        """Its report."""
        (found,) = [r for r in self.line.reports() if r["node_ip"] == address]
        return found

    def ask_at(self, address: str, body: dict[str, Any]) -> httpx.Response:
        """Asks the verifier of a node itself, from here."""
        for port in range(PORTS["replicas_from"], PORTS["replicas_to"]):
            url = f"http://{address}:{port}/v1/chat/completions"
            with suppress(httpx.ConnectError):
                answer = httpx.post(url, json=body, timeout=ANSWER_S)
                if answer.status_code != NO_VERIFIER:
                    return answer
        raise AssertionError(f"no verifier answers at {address}")

    def accepted_at(self, address: str) -> int:
        """Draft tokens of the worker that the verifier of a node has accepted."""
        self.line.settle(1.0)
        sources = self.verifier_at(address)["draft_sources"]
        return sum(sum(c["accepted"]) for s, c in sources.items() if s.startswith("worker"))


@pytest.fixture(scope="module")
def machines(lines: Lines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """The line on two machines; their head, HAProxy and Redis are on this one."""
    need_namespaces()
    lines.end()
    wires = Wires()
    redis = RedisServer(tmp_path_factory.mktemp("redis"), host=HERE)
    nodes: RayNodes | None = None
    try:
        redis.start()
        config = cluster_config(redis, tmp_path_factory.mktemp("secrets"))
        nodes = RayNodes(config, HERE)
        nodes.start("head", HERE, cpus=0)
        addresses = []
        for number in (2, 3):
            address, before = wires.place(number)
            nodes.start(address, address, cpus=1, before=before)
            addresses.append(address)
        line = lines.get("machines", config)
        (worker,) = line.reports("draft")
        (far,) = set(addresses) - {worker["node_ip"]}
        yield Machines(wires, line, Clients(line), worker["node_ip"], far)
    finally:
        lines.end()
        if nodes is not None:
            nodes.end()
        redis.kill()
        wires.end()


def cluster_config(redis: RedisServer, folder: Path) -> dict[str, Any]:
    """Two verifiers of one node each, and one draft worker."""
    password = folder / "redis"
    password.touch(mode=0o600)
    password.write_text(redis.settings.password or "")
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text("a token of the tests' own")
    sections = base_config(
        ray=RayNodes.joined(HERE),
        redis={"url": redis.settings.url, "password": {"file": str(password)}},
        router={"explain": True},
        drafting={
            "max_length": 4,
            "governor": {"mode": "fixed"},
            "split": {
                "token": {"file": str(token)},
                "local_lookup": False,
                "workers": {
                    "replicas": 1,
                    "cpus": 0,
                    "kinds": ["prompt_lookup", "ngram_index"],
                },
            },
        },
    )
    sections["verifiers"] |= {
        "replicas": 2,
        "cpus": 1,
        "max_sequences": 4,
        "longest_stream_s": 60,
    }
    sections["ports"] = {**PORTS, "host": "0.0.0.0"}
    return sections


def test_drafts_cross_the_network(machines: Machines) -> None:
    """A verifier drafts with a worker of another machine, and says the same as without drafts."""
    assert machines.verifier_at(machines.near)["worker_id"]
    before = machines.accepted_at(machines.far)
    drafted = machines.ask_at(machines.far, story_of("a lamp"))
    off = {"vllm_xargs": {"paceline_speculation": "off"}}
    plain = machines.ask_at(machines.far, story_of("a lamp", **off))
    assert said_by(drafted) == said_by(plain)
    assert machines.accepted_at(machines.far) > before


def test_a_cut_of_seconds_costs_nothing(machines: Machines) -> None:
    """Streams go on where they were, nothing is said twice or otherwise, and drafts come again."""
    clients = machines.clients
    with ThreadPoolExecutor(4) as pool:
        undisturbed = {
            stream.subject: stream.text
            for stream in pool.map(lambda s: clients.stream(s).run(), SUBJECTS[:4])
        }
        clients.streams.clear()
        running = [pool.submit(clients.stream(subject).run) for subject in SUBJECTS[:4]]
        until(lambda: all(len(s.text) > 10 for s in clients.streams), ANSWER_S)
        assert len({stream.verifier for stream in clients.streams}) == 2
        assert not any(future.done() for future in running)
        machines.wires.cut(machines.far)
        time.sleep(BLIP_S)
        machines.wires.mend(machines.far)
        for future in running:
            future.result()
    for stream in clients.streams:
        assert stream.is_whole, stream
        assert stream.text == undisturbed[stream.subject]
    before = machines.accepted_at(machines.far)
    assert machines.ask_at(machines.far, story_of("a lamp")).status_code == 200
    assert machines.accepted_at(machines.far) > before


def test_a_machine_that_is_cut_off_costs_its_own_streams_only(machines: Machines) -> None:
    """Without its draft worker the other answers all the same; what is new goes there."""
    clients = machines.clients
    clients.streams.clear()
    lost = machines.verifier_at(machines.near)["worker_id"]
    undisturbed = said_by(machines.ask_at(machines.far, story_of("a lamp")))
    with ThreadPoolExecutor(4) as pool:
        for subject in SUBJECTS[:4]:
            pool.submit(clients.stream(subject).run)
        until(lambda: all(len(s.text) > 10 for s in clients.streams), ANSWER_S)
        machines.wires.cut(machines.near)
        answers = []
        for _ in range(4):
            began_s = time.monotonic()
            answers.append(clients.ask(story_of("a lamp")))
            assert time.monotonic() - began_s < ASK_S
        others = [stream for stream in clients.streams if stream.verifier != lost]
        until(lambda: all(stream.ended_at_s for stream in others), ANSWER_S)
        until(lambda: lost not in machines.line.finished_by_verifier(), GONE_S, poll_s=1)
        until(lambda: all(stream.ended_at_s for stream in clients.streams), OVER_S)
    assert [said_by(answer) for answer in answers] == [undisturbed] * 4
    assert verifier_of(answers[-1]) != lost
    broken = [stream for stream in clients.streams if stream.verifier == lost]
    assert broken
    assert others
    assert all(stream.is_whole for stream in others)
    assert not any(stream.is_whole for stream in broken)
