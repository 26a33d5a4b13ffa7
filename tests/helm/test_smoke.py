"""What `helm test` runs, against a service that is well and against each way not to be.

The service here is a few lines of HTTP; tests/line/test_serve_deploy.py asks the real line.
"""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from chart import CHART, GPU, Object, one

KEY = "sk-test"
MODEL = "m"


def completion(text: str | None = "one two", reason: str | None = "stop", tokens: int = 2) -> Any:
    """An answer in one piece."""
    message = {"role": "assistant", "content": text}
    choices = [{"index": 0, "message": message, "finish_reason": reason}]
    return {"choices": choices, "usage": {"completion_tokens": tokens}}


def chunk(delta: Object, reason: str | None = None) -> Object:
    """A piece of one."""
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


PIECES = [
    chunk({"role": "assistant"}),
    chunk({"content": "one"}),
    chunk({}, "stop"),
    {"choices": [], "usage": {"completion_tokens": 1}},
]
REFUSED = {
    "message": "Unknown parameter.",
    "type": "invalid_request_error",
    "param": "no_such_parameter",
    "code": "unknown_parameter",
}


@dataclass
class Service:
    """How the service behaves; as it should, if nothing is changed."""

    health: int = 200
    model: str = MODEL
    key: str | None = None
    answer: Any = field(default_factory=completion)
    answer_status: int = 200
    pieces: list[Object] = field(default_factory=lambda: list(PIECES))
    ends: str = "[DONE]"
    refusal_status: int = 400
    refusal: Any = field(default_factory=lambda: {"error": dict(REFUSED)})
    counts: bool = True
    workers: int = 1
    drafted: int = 7
    metrics_status: int = 200
    asked: int = 0

    def get(self, path: str, key: str | None) -> tuple[int, Any]:
        """Status and body of what is read."""
        if path == "/health":
            return self.health, {}
        if path == "/metrics":
            finished = f'{{class="batch",outcome="finished"}} {self.asked if self.counts else 0}.0'
            rows = [f"ray_paceline_requests_total{finished}"]
            rows += [f'ray_paceline_draft_workers{{Replica="r"}} {self.workers}.0']
            rows += [f"ray_paceline_drafted_tokens_total {self.drafted}.0", "other_total 1"]
            return self.metrics_status, "\n".join(rows)
        if key != self.key:
            return 401, {"error": {"message": "no"}}
        return 200, {"data": [{"id": self.model}]}

    def post(self, body: Object) -> tuple[int, Any]:
        """Status and body, or pieces, of what is asked."""
        if "no_such_parameter" in body:
            return self.refusal_status, self.refusal
        self.asked += 1
        if self.answer_status != 200:
            return self.answer_status, "Service Unavailable"
        return 200, self.pieces if body.get("stream") else self.answer


@contextmanager
def served(service: Service) -> Iterator[str]:
    """HOST:PORT of it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(*service.get(self.path, self.key()))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if self.key() != service.key:
                self.answer(401, {})
            else:
                self.answer(*service.post(body))

        def key(self) -> str | None:
            said = self.headers.get("authorization")
            return said.removeprefix("Bearer ") if said else None

        def answer(self, status: int, body: Any) -> None:
            if isinstance(body, list):
                events = [json.dumps(piece) for piece in body] + [service.ends]
                body = "".join(f"data: {event}\n\n" for event in events)
            content = (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: object) -> None:
            """Not in the tests' output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@dataclass
class Asked:
    """How the test's pod ended."""

    code: int
    text: str

    def failed(self) -> list[str]:
        """The names of what it found wrong."""
        rows = [row.split() for row in self.text.splitlines()]
        return [row[1].rstrip(":") for row in rows if row and row[0] == "FAILED"]


Ask = Callable[..., Asked]


@pytest.fixture
def ask(rendered: Callable[..., list[Object]]) -> Ask:
    """Runs the rendered pod's command, with its own variables where nothing else is said."""
    container = one(rendered(CHART / "examples" / "cpu-only.yaml"), "Pod")["spec"]["containers"][0]
    command = container["command"]
    assert command[0] == "python"
    told = {v["name"]: v["value"] for v in container["env"]}

    def run(address: str, **said: str) -> Asked:
        here = {"BASE_URL": f"http://{address}", "METRICS": address, "MODEL": MODEL, "WAIT_S": "1"}
        done = subprocess.run(
            [sys.executable, *command[1:]],
            env={**os.environ, **told, **here, **said},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert not done.stderr, done.stderr
        return Asked(done.returncode, done.stdout)

    return run


def test_a_service_that_is_well_passes(ask: Ask) -> None:
    """Every check is made, and says what it saw."""
    with served(Service()) as address:
        asked = ask(address)
    assert asked.code == 0, asked.text
    made = [row.split()[1] for row in asked.text.splitlines() if row.startswith("ok")]
    assert made == [
        f"{name}:"
        for name in ("health", "keys", "metrics", "models", "chat", "stream", "refusal", "counts")
    ]
    assert "2 requests so far, 7 tokens drafted" in asked.text
    assert asked.text.endswith("all is well\n")


def test_a_thought_is_an_answer_too(ask: Ask) -> None:
    """A model that reasons may have said nothing yet."""
    thinking = completion(None, "length")
    thinking["choices"][0]["message"]["reasoning"] = "hm"
    pieces = [chunk({"reasoning": "hm"}), chunk({}, "length")]
    with served(Service(answer=thinking, pieces=pieces)) as address:
        assert ask(address).code == 0


def test_keys_are_asked_for_where_the_cluster_says_so(ask: Ask) -> None:
    """None gets in without; with one, all is well."""
    with served(Service(key=KEY)) as address:
        asked = ask(address, ASKS_KEY="yes", API_KEY=KEY)
    assert asked.code == 0, asked.text


WRONG: dict[str, tuple[Service, str, str]] = {
    "loading": (Service(health=503), "health", "nobody is ready after 1 s (503"),
    "health": (Service(health=404), "health", "/health answers 404"),
    "other model": (Service(model="other"), "models", "m is not served; there is other"),
    "down": (Service(answer_status=503), "chat stream", "chat/completions answers 503"),
    "empty": (Service(answer=completion("", tokens=0)), "chat", "the answer is empty"),
    "no text": (Service(answer=completion(None)), "chat", "the answer is empty"),
    "no end": (Service(answer=completion(reason=None)), "chat", "ended by None"),
    "no json": (Service(answer="<html>"), "chat", "JSONDecodeError"),
    "no choices": (Service(answer={}), "chat", "KeyError"),
    "cut": (Service(ends='{"choices": []}'), "stream", "does not end in [DONE]"),
    "nothing": (Service(pieces=[chunk({}, "stop")]), "stream", "has no text"),
    "no reason": (Service(pieces=PIECES[:2]), "stream", "has no finish_reason"),
    "taken": (Service(refusal_status=200), "refusal", "answered with 200"),
    "crash": (Service(refusal_status=500), "refusal", "answered with 500"),
    "plain error": (Service(refusal="Bad Request"), "refusal", "not in OpenAI's shape"),
    "other shape": (Service(refusal={"detail": "no"}), "refusal", "not in OpenAI's shape"),
    "no name": (
        Service(refusal={"error": REFUSED | {"param": None}}),
        "refusal",
        "does not name the parameter",
    ),
    "no metrics": (Service(metrics_status=404), "metrics", "GET /metrics answers 404"),
    "uncounted": (Service(counts=False), "counts", "two answers are not counted: 0 in all"),
    "no workers": (Service(workers=0), "counts", "no verifier uses a draft worker"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(case: str, ask: Ask) -> None:
    """By the check that found it and by what it found; what is right is said to be."""
    service, failing, said = WRONG[case]
    with served(service) as address:
        asked = ask(address)
    assert asked.code == 1
    assert asked.failed() == failing.split()
    assert said in asked.text


def test_drafts_of_the_verifier_itself_are_looked_for(ask: Ask) -> None:
    """Tokens, where there are no workers."""
    with served(Service(workers=0, drafted=0)) as address:
        asked = ask(address, DRAFTING="tokens")
        assert asked.failed() == ["counts"] and "no token was ever drafted" in asked.text
        assert ask(address, DRAFTING="").code == 0
    with served(Service(workers=0)) as address:
        assert ask(address, DRAFTING="tokens").code == 0


def test_a_door_that_stands_open_is_told(ask: Ask) -> None:
    """Keys are configured, and nobody asks for them."""
    with served(Service()) as address:
        asked = ask(address, ASKS_KEY="yes", API_KEY=KEY)
    assert asked.failed() == ["keys"] and "without a key /v1/models answers 200" in asked.text


def test_a_missing_key_is_told(ask: Ask) -> None:
    """And where to name one."""
    with served(Service(key=KEY)) as address:
        asked = ask(address, ASKS_KEY="yes")
    assert asked.failed() == ["keys"] and "tests.apiKeySecret" in asked.text


def test_a_service_that_is_not_there_is_told(ask: Ask) -> None:
    """Nobody listens; nobody has that name."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        asked = ask(f"127.0.0.1:{unused.getsockname()[1]}")
    assert asked.failed() == ["health"] and "ConnectError" in asked.text
    with served(Service()) as address:
        asked = ask(address, METRICS="nobody.invalid:8080")
    assert asked.failed() == ["metrics"] and "nobody.invalid has no address" in asked.text


@pytest.mark.parametrize(
    ("drafting", "expected"),
    [
        ({}, ""),
        ({"colocated": {"method": "ngram"}}, "tokens"),
        ({"split": {}}, "workers"),
        ({"split": {"workers": {"replicas": 0}}}, ""),
    ],
)
def test_the_pod_is_told_what_to_look_for(
    drafting: Object, expected: str, with_values: Callable[[Object], list[Object]]
) -> None:
    """What the cluster's config makes likely, and no more."""
    values = GPU | {"cluster": GPU["cluster"] | {"drafting": drafting}}
    env = one(with_values(values), "Pod")["spec"]["containers"][0]["env"]
    assert {v["name"]: v.get("value") for v in env}["DRAFTING"] == expected
