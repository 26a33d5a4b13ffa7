"""With keys configured, nothing but health is open, and tenants share no cached block."""

import httpx
import pytest
from lines import MODEL, Line

pytestmark = pytest.mark.line

PATHS = (
    ("GET", "/v1/models"),
    ("GET", f"/v1/models/{MODEL}"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/responses"),
    ("POST", "/v1/messages"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/metrics"),
    ("GET", "/docs"),
    ("GET", "/openapi.json"),
    ("GET", "/version"),
    ("POST", "/invocations"),
    ("GET", "/no/such/path"),
    ("OPTIONS", "/v1/chat/completions"),
    ("GET", "//v1/models"),
)
LONG = "The quick brown fox jumps over the lazy dog beside the quiet river bank. " * 12


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_every_path_is_closed_without_a_key(keyed_line: Line, method: str, path: str) -> None:
    """401 in the OpenAI shape, through HAProxy and on each replica's own port."""
    ports = keyed_line.replica_ports()
    assert len(ports) == 2
    for base in [keyed_line.url, *(f"http://127.0.0.1:{port}" for port in ports)]:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic eA=="}):
            answer = httpx.request(method, base + path, headers=headers)
            assert answer.status_code == 401, (base, answer.text)
            assert answer.json()["error"]["type"] == "authentication_error"


def test_health_is_open(keyed_line: Line) -> None:
    """A load balancer needs no key to see whether a verifier lives."""
    assert httpx.get(f"{keyed_line.url}/health").status_code == 200


def cached_tokens(line: Line, key: str, prompt: str, **body: object) -> int:
    """Asks each verifier itself, so that both have seen the prompt; sums what they found."""
    found = 0
    for port in line.replica_ports():
        answer = httpx.post(
            f"http://127.0.0.1:{port}/v1/completions",
            headers={"authorization": f"Bearer {key}"},
            json={"model": MODEL, "prompt": prompt, "max_tokens": 1, **body},
            timeout=120,
        )
        answer.raise_for_status()
        details = answer.json()["usage"]["prompt_tokens_details"] or {}
        found += details.get("cached_tokens") or 0
    return found


def test_tenants_with_the_same_prompt_share_no_block(
    keyed_line: Line, alpha: str, beta: str
) -> None:
    """A finds its own blocks again; B never finds A's, whatever salt it sends."""
    assert cached_tokens(keyed_line, alpha, LONG) == 0
    assert cached_tokens(keyed_line, alpha, LONG) > 0
    assert cached_tokens(keyed_line, beta, LONG) == 0
    other = "Another text. " + LONG
    assert cached_tokens(keyed_line, alpha, other, cache_salt="mine") == 0
    assert cached_tokens(keyed_line, beta, other, cache_salt="mine") == 0
    assert cached_tokens(keyed_line, alpha, other) > 0, "a client's salt must change nothing"


def test_no_key_and_no_prompt_is_written_down(keyed_line: Line, alpha: str) -> None:
    """Neither the logs of the verifiers nor the state of the run hold a key or a prompt."""
    secret_text = "xylophone-quartz-92"
    answer = httpx.post(
        f"{keyed_line.url}/v1/completions",
        headers={"authorization": f"Bearer {alpha}"},
        json={"model": MODEL, "prompt": secret_text, "max_tokens": 2},
        timeout=60,
    )
    answer.raise_for_status()
    written = [
        file
        for file in keyed_line.run_folder.rglob("*")
        if file.is_file()
        and file.suffix in (".log", ".json", ".err", ".out", ".cfg", ".lua")
        and any(word in file.read_bytes() for word in (alpha.encode(), secret_text.encode()))
    ]
    assert not written


def test_each_finished_request_leaves_one_line(keyed_line: Line, alpha: str) -> None:
    """The line has the id the client saw, tokens, drafted, accepted and TTFT."""
    answer = keyed_line.client(alpha).chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Hi"}], max_tokens=3
    )
    keyed_line.settle()
    lines = [
        line for line in keyed_line.replica_logs().splitlines() if f"request id={answer.id}" in line
    ]
    assert len(lines) == 1
    for part in ("outcome=finished", "output_tokens=3", "drafted=0", "accepted=0", "ttft_ms="):
        assert part in lines[0]
