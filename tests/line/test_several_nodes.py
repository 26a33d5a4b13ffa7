"""Several Ray nodes: where things run, what a node that leaves costs, and what a dead one."""

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import closed_loop
import httpx
import pytest
from lines import MODEL, PORTS, Line, Lines, base_config
from listening import ports_of_process
from ray_nodes import HEAD, RayNode, RayNodes
from tiny_models import make_tiny_llama

from replicas.verifier.placement import Place, distance

pytestmark = [pytest.mark.line, pytest.mark.long]

POLL_S = 0.1
LEAVE_S = 150.0
"""How long a node may take to leave, the start of a verifier elsewhere included."""
ANSWER_S = 180.0
SEEN_S = 1.0
"""After which HAProxy and the router have heard that a verifier is stopped."""
TOKENS = 80
ZONES = {"127.0.0.2": "east", "127.0.0.3": "east", "127.0.0.4": "west"}
"""Of the nodes beside the head."""
SUBJECTS = ("a lamp", "a river", "two dogs", "the moon", "a train", "an old map")
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


def story_of(subject: str, **changes: Any) -> dict[str, Any]:
    """A request whose answer is always the same."""
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"Tell a story about {subject}."}],
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        **changes,
    }


@dataclass
class Stream:
    """One streamed answer, as it comes."""

    url: str
    subject: str
    verifier: str = ""
    text: str = ""
    finish: str | None = None
    is_done: bool = False
    """Whether the stream said that it is over."""
    error: str = ""
    sent_at_s: float = 0.0
    ended_at_s: float = 0.0

    def run(self) -> "Stream":
        """Asks, and takes in what comes."""
        self.sent_at_s = time.monotonic()
        body = story_of(self.subject, stream=True)
        try:
            with httpx.stream("POST", self.url, json=body, timeout=ANSWER_S) as response:
                self.verifier = verifier_of(response)
                assert response.status_code == 200, response.read()
                for line in response.iter_lines():
                    self._take(line.removeprefix("data: "))
        except Exception as error:  # what it is, a test looks at
            self.error = repr(error)
        self.ended_at_s = time.monotonic()
        return self

    def _take(self, event: str) -> None:
        if event == "[DONE]":
            self.is_done = True
        elif event:
            said = json.loads(event)
            assert "error" not in said, said
            for choice in said["choices"]:
                self.text += choice["delta"].get("content") or ""
                self.finish = choice["finish_reason"] or self.finish

    @property
    def is_whole(self) -> bool:
        """Whether the answer came to its end."""
        return self.is_done and self.finish == "length" and not self.error


@dataclass
class Clients:
    """What asks the line."""

    line: Line
    streams: list[Stream] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"{self.line.url}/v1/chat/completions"

    def stream(self, subject: str) -> Stream:
        """A stream that is kept, not yet asked for."""
        self.streams.append(Stream(self.url, subject))
        return self.streams[-1]

    def ask(self, body: dict[str, Any]) -> httpx.Response:
        """A whole answer."""
        return httpx.post(self.url, json=body, timeout=ANSWER_S)

    @contextmanager
    def streaming(self, clients: int) -> Iterator[None]:
        """So many of them stream, one answer after another, until the block ends."""

        def stream(number: int) -> None:
            self.stream(SUBJECTS[number % len(SUBJECTS)]).run()

        with closed_loop.asking(clients, stream):
            yield


def verifier_of(response: httpx.Response) -> str:
    """Where the router first sent the request."""
    return response.headers["x-paceline-route"].split(",")[0]


def said_by(response: httpx.Response) -> list[Any]:
    """What an answer says, without what is new each time: ids, and texts where they are drawn."""
    assert response.status_code == 200, response.text
    body = response.json()
    said: list[Any] = [body["usage"]["completion_tokens"]]
    for choice in body["choices"]:
        calls = [call["function"] for call in choice["message"].get("tool_calls") or ()]
        text = choice["message"]["content"] if len(body["choices"]) == 1 else ""
        said.append((text, calls, choice["finish_reason"]))
    return said


def until(true: Callable[[], Any], within_s: float) -> Any:
    """What `true` gives once it is true."""
    deadline_s = time.monotonic() + within_s
    while not (found := true()):
        assert time.monotonic() < deadline_s
        time.sleep(POLL_S)
    return found


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
