"""What one verifier has answered is drafted at another, and only for the same tenant.

Nothing else drafts on this line: every accepted token comes from the fleet's n-grams. Requests
go to the verifiers' own ports, so that each is answered where the test says.
"""

import time
from typing import Any

import httpx
import pytest
from lines import MODEL, Line
from prompts import CODE

pytestmark = pytest.mark.line

OUTPUT_TOKENS = 64
FRESH_S = 2.0
"""The longest that a finished text may take to be drafted elsewhere."""
SOURCE = "worker:ngram_index"
MANUAL = (
    "To change a tyre, first open the brake, then take out the wheel, lever the old tyre off the "
    "rim, check the rim tape, put a new tube in, and close the brake again before you ride. "
)


def answer(line: Line, port: int, key: str, prompt: str) -> list[int]:
    """Greedy tokens from one verifier."""
    response = httpx.post(
        f"http://127.0.0.1:{port}/v1/completions",
        headers={"authorization": f"Bearer {key}"},
        json={
            "model": MODEL,
            "prompt": prompt,
            "max_tokens": OUTPUT_TOKENS,
            "temperature": 0,
            "return_token_ids": True,
            "ignore_eos": True,
        },
        timeout=120,
    )
    response.raise_for_status()
    ids: list[int] = response.json()["choices"][0]["token_ids"]
    return ids


def accepted(line: Line) -> int:
    """Draft tokens from the fleet's n-grams that were accepted so far, on all verifiers."""
    return line.accepted_by_source().get(SOURCE, 0)


def form(name: str) -> str:
    """One of many requests that differ in a name."""
    return f"# Written for {name}\n{CODE}\n# Again, for {name}\n{CODE}\n# And again\ndef area("


def test_a_template_seen_on_one_verifier_is_drafted_on_the_other(
    fleet_line: Line, alpha: str, beta: str
) -> None:
    """Within two seconds of its end, with the tokens that there would be without; and tenant
    beta, who asked first, was drafted nothing of alpha's.
    """
    one, two = fleet_line.replica_ports()
    expected = answer(fleet_line, two, beta, form("Kim"))
    assert accepted(fleet_line) == 0
    answer(fleet_line, one, alpha, form("Robin"))
    time.sleep(FRESH_S)
    before = accepted(fleet_line)
    assert answer(fleet_line, two, alpha, form("Kim")) == expected
    gained = accepted(fleet_line) - before
    assert gained > OUTPUT_TOKENS // 3


def test_one_tenants_text_is_not_drafted_for_another(
    fleet_line: Line, alpha: str, beta: str
) -> None:
    """Beta's accepted tokens are as many with alpha's traffic as without any."""
    one, two = fleet_line.replica_ports()
    prompt = f"{MANUAL}\nOnce more, word for word: To change a tyre,"
    for port in (one, two):
        answer(fleet_line, port, alpha, prompt)
    time.sleep(FRESH_S)
    before = accepted(fleet_line)
    answer(fleet_line, two, beta, prompt)
    assert accepted(fleet_line) == before


def test_a_corpus_is_drafted_from_and_a_tenant_forgotten(
    fleet_line: Line, beta: str, tmp_path: Any
) -> None:
    """By the commands of an operator, while the line runs."""
    one, two = fleet_line.replica_ports()
    which = ("--cluster", str(fleet_line.config_file))
    ask = form("Sam")
    told = fleet_line.paceline("forget", "beta", *which)
    assert told.returncode == 0, told.stderr
    time.sleep(FRESH_S)
    before = accepted(fleet_line)
    expected = answer(fleet_line, one, beta, ask)
    assert accepted(fleet_line) == before  # and by now its text has reached the workers
    told = fleet_line.paceline("forget", "beta", *which)
    assert told.returncode == 0, told.stderr
    file = tmp_path / "area.py"
    file.write_text(CODE)
    told = fleet_line.paceline("corpus", "add", str(file), *which)
    assert told.returncode == 0, told.stderr
    time.sleep(FRESH_S)
    before = accepted(fleet_line)
    assert answer(fleet_line, two, beta, ask) == expected
    assert accepted(fleet_line) > before
    for worker in fleet_line.reports("draft"):
        assert worker["ngrams"]["connected"]
        assert worker["ngrams"]["corpus_tokens"] > 0
    assert "n-grams" in fleet_line.paceline("status", str(fleet_line.config_file)).stdout
