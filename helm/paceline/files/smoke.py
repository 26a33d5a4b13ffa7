"""`helm test`: does the line that was installed do what it should?

It asks as a client would, says of each thing whether it is so, and ends with 1 where one is not.
It is told by its environment:

    BASE_URL  of the service                 MODEL     what clients call the model
    API_KEY   one, where keys are asked for  ASKS_KEY  `yes` where they are
    METRICS   host:port of the verifiers' metrics; all addresses of the host are read
    DRAFTING  `workers` or `tokens`: what must be seen where something is to be drafted
    WAIT_S    how long the service may take to be there, and its metrics to tell of it
"""

import json
import os
import re
import socket
import sys
import time
from collections.abc import Callable
from functools import partial

import httpx

MODEL, KEY = os.environ["MODEL"], os.environ.get("API_KEY", "")
ASKS_KEY = os.environ.get("ASKS_KEY") == "yes"
METRICS, DRAFTING = os.environ.get("METRICS", ""), os.environ.get("DRAFTING", "")
WAIT_S = float(os.environ.get("WAIT_S", "60"))
# What it repeats is drafted by any prompt lookup.
QUESTION = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Repeat: one two three four. " * 4}],
    "max_tokens": 32,
    "temperature": 0,
}
CHAT, GONE = "/v1/chat/completions", (502, 503, 504)


class Wrong(Exception):
    """Something is not as it should be; the text says what, and what to do."""


def ready(client: httpx.Client) -> str:
    """Waits until an engine lives."""
    deadline_s = time.monotonic() + WAIT_S
    while True:
        try:
            answer = client.get("/health")
            if answer.status_code == 200:
                return "an engine lives"
            if answer.status_code not in GONE:
                raise Wrong(f"/health answers {told(answer)}")
            last = told(answer)
        except httpx.TransportError as error:
            last = f"{type(error).__name__}: {error}"
        if time.monotonic() > deadline_s:
            raise Wrong(
                f"nobody is ready after {WAIT_S:.0f} s ({last}); does `kubectl get rayservice` say"
                " that it is, and is cluster.ports.http open to this pod?"
            )
        time.sleep(1)


def keys(client: httpx.Client) -> str:
    """Nobody gets in without a key where keys are asked for, and we have one."""
    if not ASKS_KEY:
        return "none are asked for"
    answer = httpx.get(client.base_url.join("/v1/models"), timeout=60)
    if answer.status_code != 401:
        raise Wrong(f"without a key /v1/models answers {told(answer)}, not 401")
    if not KEY:
        raise Wrong("this service asks for one; name a secret that has it in tests.apiKeySecret")
    return "none is let in without"


def models(client: httpx.Client) -> str:
    """The model is listed under its name."""
    answer = must(client.get("/v1/models"))
    served = [model["id"] for model in answer.json()["data"]]
    if MODEL not in served:
        raise Wrong(f"{MODEL} is not served; there is {', '.join(served) or 'none'}")
    return ", ".join(served)


def chat(client: httpx.Client) -> str:
    """An answer that is not empty, and has ended."""
    body = must(client.post(CHAT, json=QUESTION)).json()
    choice, usage = body["choices"][0], body["usage"]
    if not text_of(choice["message"]) or not usage["completion_tokens"]:
        raise Wrong(f"the answer is empty: {json.dumps(body)[:500]}")
    if choice["finish_reason"] not in ("stop", "length"):
        raise Wrong(f"the answer ended by {choice['finish_reason']!r}, not by stop or length")
    return f"{usage['completion_tokens']} tokens, ended by {choice['finish_reason']}"


def stream(client: httpx.Client) -> str:
    """The same in pieces, with an end."""
    with client.stream("POST", CHAT, json=QUESTION | {"stream": True}) as answer:
        if answer.status_code != 200:
            answer.read()
            raise Wrong(f"a stream is answered with {told(answer)}")
        events = [row[6:] for row in answer.iter_lines() if row.startswith("data: ")]
    if not events or events[-1] != "[DONE]":
        raise Wrong(f"the stream of {len(events)} events does not end in [DONE]")
    choices = [chunk["choices"][0] for e in events[:-1] if (chunk := json.loads(e))["choices"]]
    if not any(text_of(choice["delta"]) for choice in choices):
        raise Wrong(f"the stream of {len(events)} events has no text")
    if not any(choice.get("finish_reason") for choice in choices):
        raise Wrong("the stream has no finish_reason")
    return f"{len(events)} events, the last is [DONE]"


def refusal(client: httpx.Client) -> str:
    """What can't be served is a 400 that OpenAI's clients understand."""
    answer = client.post(CHAT, json=QUESTION | {"no_such_parameter": 1})
    if answer.status_code != 400:
        raise Wrong(f"an unknown parameter is answered with {told(answer)}, not 400")
    try:
        error = answer.json()["error"]
        found = error["type"], error["param"], bool(error["message"]), "code" in error
    except (ValueError, LookupError, TypeError):
        raise Wrong(f"this error is not in OpenAI's shape: {told(answer)}") from None
    if found != ("invalid_request_error", "no_such_parameter", True, True):
        raise Wrong(f"this error does not name the parameter: {told(answer)}")
    return error["message"]


def counts(before: dict[str, float]) -> str:
    """Verifiers count what was asked of them, and draft where they should."""
    wanted = before.get("paceline_requests_total", 0) + 2
    deadline_s = time.monotonic() + WAIT_S
    while True:
        now = scraped()
        requests = now.get("paceline_requests_total", 0)
        drafted = now.get("paceline_drafted_tokens_total", 0)
        missing = []
        if requests < wanted:
            missing.append(f"this test's two answers are not counted: {requests:.0f} in all")
        if DRAFTING == "workers" and now.get("paceline_draft_workers", 0) < 1:
            missing.append("no verifier uses a draft worker; `paceline status` says why")
        if DRAFTING == "tokens" and drafted < 1:
            missing.append("no token was ever drafted, though cluster.drafting says who shall")
        if not missing:
            return f"{requests:.0f} requests so far, {drafted:.0f} tokens drafted"
        if time.monotonic() > deadline_s:
            raise Wrong("; ".join(missing))
        time.sleep(1)


def scraped() -> dict[str, float]:
    """Sums of our metrics over all verifiers' nodes."""
    host, _, port = METRICS.rpartition(":")
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise Wrong(f"{host} has no address, so no verifier's pod is ready: {error}") from None
    sums: dict[str, float] = {}
    for address in sorted({str(info[4][0]) for info in found}):
        where = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        try:
            text = must(httpx.get(f"http://{where}/metrics", timeout=10)).text
        except httpx.HTTPError as error:
            raise Wrong(f"metrics can't be read at {where}: {error}") from None
        for name, value in re.findall(r"^ray_(paceline_\w+)(?:\{.*\})? (\S+)", text, re.M):
            sums[name] = sums.get(name, 0) + float(value)
    return sums


def must(answer: httpx.Response) -> httpx.Response:
    """`answer`, if it is a 200."""
    if answer.status_code != 200:
        raise Wrong(f"{answer.request.method} {answer.request.url.path} answers {told(answer)}")
    return answer


def told(answer: httpx.Response) -> str:
    """Status and beginning of an answer."""
    return f"{answer.status_code} {answer.text[:300]!r}"


def text_of(message: dict[str, object]) -> object:
    """What a message or a piece of one says, be it thought or spoken."""
    return message.get("content") or message.get("reasoning") or message.get("reasoning_content")


def check(name: str, ask: Callable[[], str]) -> bool:
    """Whether `ask` finds nothing wrong; says so."""
    try:
        said, is_right = ask(), True
    except Wrong as wrong:
        said, is_right = str(wrong), False
    except (httpx.HTTPError, ValueError, LookupError, TypeError, AttributeError) as error:
        said, is_right = f"{type(error).__name__}: {error}", False
    sys.stdout.write(f"{'ok    ' if is_right else 'FAILED'} {name}: {said}\n")
    return is_right


def main() -> int:
    """Everything in order; without what comes first, the rest makes no sense."""
    headers = {"authorization": f"Bearer {KEY}"} if KEY else {}
    with httpx.Client(base_url=os.environ["BASE_URL"], headers=headers, timeout=60) as client:
        is_well = check("health", lambda: ready(client)) and check("keys", lambda: keys(client))
        if is_well:
            before: dict[str, float] = {}

            def read() -> str:
                before.update(scraped())
                return f"{len(before)} of ours at {METRICS}"

            is_read = bool(METRICS) and check("metrics", read)
            found = [check(ask.__name__, partial(ask, client)) for ask in ASKS]
            if is_read:
                found.append(check("counts", lambda: counts(before)))
            is_well = all(found) and (is_read or not METRICS)
    sys.stdout.write("all is well\n" if is_well else "something is wrong, see FAILED\n")
    return 0 if is_well else 1


ASKS = (models, chat, stream, refusal)

if __name__ == "__main__":
    sys.exit(main())
