"""Several Ray nodes: where things run, what a node that leaves costs, and what a dead one."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from lines import PORTS, Line, Lines, base_config
from listening import ports_of_process
from ray_nodes import HEAD, RayNode, RayNodes
from streams import ANSWER_S, SUBJECTS, TOKENS, Clients, said_by, story_of
from tiny_models import make_tiny_llama
from waiting import until

from replicas.verifier.placement import Place, distance

pytestmark = [pytest.mark.line, pytest.mark.long]

LEAVE_S = 150.0
"""How long a node may take to leave, the start of a verifier elsewhere included."""
SEEN_S = 1.0
"""After which HAProxy and the router have heard that a verifier is stopped."""
ZONES = {"127.0.0.2": "east", "127.0.0.3": "east", "127.0.0.4": "west"}
"""Of the nodes beside the head."""
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def config() -> dict[str, Any]:
    """Two verifiers of two sequences and three draft workers, on nodes of their own."""
    workers = {"replicas": 3, "cpus": 0}
    sections = base_config(
        ray=RayNodes.joined(),
        router={"explain": True},
        drafting={"max_length": 4, "governor": {"mode": "fixed"}, "split": {"workers": workers}},
    )
    sections["verifiers"] |= {
        "replicas": 2,
        "cpus": 0.5,
        "max_sequences": 2,
        "longest_stream_s": 60,
    }
    sections["ports"] = {**PORTS, "host": "0.0.0.0"}
    return sections


@dataclass
class Cluster:
    """Nodes, the line that joined them, and the undisturbed answers."""

    nodes: RayNodes
    line: Line
    clients: Clients
    told: dict[str, str] = field(default_factory=dict)

    def node_of(self, verifier: str) -> RayNode:
        """Where a verifier runs."""
        reports = {report["worker_id"]: report for report in self.line.reports()}
        return self.nodes.at(reports[verifier]["node_ip"])

    def verifiers(self) -> list[str]:
        """Those that are live."""
        return [report["worker_id"] for report in self.line.reports()]


@pytest.fixture(scope="module")
def nodes(lines: Lines) -> Iterator[RayNodes]:
    """A head with cores of its own, and three nodes of one core, two of them in one zone."""
    lines.end()
    made = RayNodes(config())
    try:
        made.start("head", HEAD, cpus=2)
        for address, zone in ZONES.items():
            made.start(address, address, cpus=1, zone=zone)
        yield made
    finally:
        lines.end()
        made.end()


def ranks_config(model: Path) -> dict[str, Any]:
    """One verifier of two ranks, each as large as a node, and a draft worker."""
    sections = config()
    sections["model"] = {
        "name": "tiny",
        "source": str(model),
        "dtype": "float32",
        "max_model_len": 512,
    }
    sections["verifiers"] |= {"replicas": 1, "tensor_parallel": 2, "cpus": 1}
    sections["autoscaling"] = {"max_verifiers": 1}  # deployed by a Serve config
    sections["drafting"]["split"]["workers"]["replicas"] = 1
    return sections


def greedy_by_transformers(model: Path, prompt: list[int]) -> list[int]:
    """What the weights say to a prompt, by another implementation."""
    import torch
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(TOKENS):
            tokens.append(int(loaded(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def test_ranks_of_one_verifier_are_on_two_nodes(
    nodes: RayNodes, lines: Lines, tmp_path: Path
) -> None:
    """Where one node has too few cores: the answer is the model's, with drafts of a worker."""
    model = make_tiny_llama(tmp_path / "tiny")
    line = lines.get("ranks", ranks_config(model))
    with_ranks = [node.address for node in nodes.nodes.values() if node.ranks()]
    assert len(with_ranks) == 2
    assert set(with_ranks) < set(ZONES)
    for prompt in ([97, 98, 32] * 8, list(b"one two three one two three one two")):
        answer = line.client().completions.create(
            model="tiny",
            prompt=prompt,
            max_tokens=TOKENS,
            temperature=0,
            extra_body={"return_token_ids": True, "ignore_eos": True},
        )
        told = answer.choices[0].model_extra["token_ids"]
        assert told == greedy_by_transformers(model, prompt)
    assert line.accepted_by_source()["worker:prompt_lookup"] > 20


@pytest.fixture(scope="module")
def cluster(nodes: RayNodes, lines: Lines) -> Cluster:
    """The line on these nodes."""
    line = lines.get("nodes", config())
    return Cluster(nodes, line, Clients(line))


def test_up_joins_and_spreads_over_the_nodes(cluster: Cluster) -> None:
    """Verifiers are on two nodes, where one had room for both; on the head is nothing."""
    verifiers, workers = cluster.line.reports(), cluster.line.reports("draft")
    assert len({report["node_ip"] for report in verifiers}) == len(verifiers) == 2
    assert len(workers) == 3
    assert all(report["zone"] == ZONES[report["node_ip"]] for report in verifiers + workers)
    seen = cluster.line.status()
    assert len({node["address"] for node in seen["nodes"]} - set(ZONES)) == 1
    assert seen["replica_states"] == {"RUNNING": 2}


def test_a_verifier_asks_the_nearest_draft_workers(cluster: Cluster) -> None:
    """Of its own node, else of its zone; those farther away hear nothing of its requests."""
    for report in cluster.line.reports():
        (port,) = ports_of_process(report["pid"], PORTS["replicas_from"], PORTS["replicas_to"])
        here = Place(report["node_ip"], report["zone"])
        cluster.line.settle()
        before = {worker["worker_id"]: worker for worker in cluster.line.reports("draft")}
        far = {
            name: distance(here, Place(worker["node_ip"], worker["zone"]))
            for name, worker in before.items()
        }
        url = f"http://{report['node_ip']}:{port}/v1/chat/completions"
        assert httpx.post(url, json=story_of("a lamp"), timeout=ANSWER_S).status_code == 200
        cluster.line.settle()
        asked = {
            worker["worker_id"]
            for worker in cluster.line.reports("draft")
            if worker["asks"] > before[worker["worker_id"]]["asks"]
        }
        assert asked
        assert {far[name] for name in asked} == {min(far.values())}


def test_requests_that_can_wait_begin_last(cluster: Cluster) -> None:
    """Both verifiers are full, and `flex` requests wait there: those that come later go first."""
    clients = cluster.clients
    with ThreadPoolExecutor(3 * 4) as pool:
        running = [clients.stream(subject) for subject in SUBJECTS[:4]]
        for stream in running:
            pool.submit(stream.run)
        until(lambda: all(stream.text for stream in running), ANSWER_S)
        patient = [clients.stream(subject, service_tier="flex") for subject in SUBJECTS[:4]]
        for stream in patient:
            pool.submit(stream.run)
        cluster.line.counters_until(lambda seen: seen["requests_waiting"] == 4, ANSWER_S)
        urgent = [clients.stream(subject) for subject in SUBJECTS[:4]]
        for stream in urgent:
            pool.submit(stream.run)
    assert all(stream.is_whole for stream in clients.streams)
    for verifier in cluster.verifiers():
        waited, went = (
            [stream.first_at_s for stream in streams if stream.verifier == verifier]
            for streams in (patient, urgent)
        )
        assert max(went) < min(waited)
    clients.streams.clear()


def test_a_node_that_leaves_ends_its_streams_and_gets_no_more(cluster: Cluster) -> None:
    """Its verifier is replaced first, then leaves the router, then ends its streams and is gone."""
    leaving = cluster.verifiers()[0]
    node, clients = cluster.node_of(leaving), cluster.clients
    with clients.streaming(3):
        until(lambda: any(stream.verifier == leaving for stream in clients.streams), ANSWER_S)
        cluster.nodes.drain(node, LEAVE_S)
        stopping = f"Stopping Replica(id='{leaving}'"
        until(lambda: stopping in cluster.nodes.controller_log(), LEAVE_S)
        stopped_at_s = time.monotonic()
        assert len(set(cluster.verifiers()) - {leaving}) == 2, "stopped before another was there"
        until(lambda: not node.verifiers(), LEAVE_S)
        gone_at_s = time.monotonic()
    for stream in clients.streams:
        assert stream.is_whole, stream
        assert stream.text == cluster.told.setdefault(stream.subject, stream.text)
    its = [stream for stream in clients.streams if stream.verifier == leaving]
    assert [s for s in its if s.sent_at_s < stopped_at_s < s.ended_at_s < gone_at_s]
    assert not [s for s in its if s.sent_at_s > stopped_at_s + SEEN_S]
    assert leaving not in cluster.verifiers()


def test_a_node_that_dies_costs_its_own_streams_only(cluster: Cluster) -> None:
    """Those that had begun break off; what was not begun is asked elsewhere; the rest goes on."""
    clients = cluster.clients
    waiting = [
        *(story_of(subject) for subject in SUBJECTS[2:]),
        story_of("a lamp", n=2, temperature=1.0),
        story_of("a river", tools=[WEATHER]),
    ]
    with ThreadPoolExecutor(len(waiting)) as pool:
        undisturbed = [said_by(answer) for answer in pool.map(clients.ask, waiting)]
    clients.streams.clear()
    dying, staying = cluster.verifiers()
    node = cluster.node_of(dying)
    with ThreadPoolExecutor(4 + len(waiting)) as pool:
        for subject in SUBJECTS[:4]:
            pool.submit(clients.stream(subject).run)
        # All four run, two on each, and so the others wait for places.
        until(lambda: all(len(stream.text) > 10 for stream in clients.streams), ANSWER_S)
        answers = [pool.submit(clients.ask, body) for body in waiting]
        until(lambda: all(r["requests_waiting"] for r in cluster.line.reports()), ANSWER_S)
        assert not [stream for stream in clients.streams if stream.ended_at_s]
        node.kill()
        # Whether the router knows already or not: HAProxy asks another.
        after = [clients.ask(story_of("a lamp", max_tokens=2)) for _ in range(6)]
        said = [said_by(answer.result()) for answer in answers]
    assert said == undisturbed
    assert dying in {
        answer.result().headers["x-paceline-route"].split(",")[0] for answer in answers
    }
    assert [answer.status_code for answer in after] == [200] * 6
    its = [stream for stream in clients.streams if stream.verifier == dying]
    others = [stream for stream in clients.streams if stream.verifier == staying]
    assert len(its) == len(others) == 2
    for stream in its:
        assert stream.error
        assert not stream.is_done
        assert stream.finish is None
        assert cluster.told[stream.subject].startswith(stream.text)
    for stream in others:
        assert stream.is_whole
        assert stream.text == cluster.told[stream.subject]
