"""The sharing domain on its way from the front door to a draft worker."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import httpx
import numpy as np
import pytest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

from kvstore.keys import parse_keys
from replicas.verifier.draft_ledger import DraftLedger, Row
from replicas.verifier.draft_lengths import DraftLengths, GovernorSettings
from replicas.verifier.draft_pool import DraftPool
from replicas.verifier.front_door import FrontDoor, FrontDoorPolicy
from replicas.verifier.proposer import Proposer, ProposerSettings
from replicas.verifier.sharing import DOMAIN, domain_of
from replicas.verifier.step_watch import StepWatch

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
HEX = "ab" * 32

Client = Callable[..., httpx.AsyncClient]


@pytest.fixture
def drafting(policy: FrontDoorPolicy) -> FrontDoorPolicy:
    keys = parse_keys("ada key-of-ada\nbob key-of-bob")
    return replace(policy, keys=keys, domain_secret=b"s", speculation=True)


@pytest.mark.parametrize("sent", [{}, {"vllm_xargs": {DOMAIN: HEX}}, {"vllm_xargs": None}])
async def test_the_domain_is_the_tenants_whatever_a_client_sends(
    sent: Any, drafting: FrontDoorPolicy, recorded: Any, client: Client
) -> None:
    """And it is what the engine's sampling parameters carry, by vLLM's own conversion."""
    seen = {}
    for tenant in ("ada", "bob"):
        key = {"authorization": f"Bearer key-of-{tenant}"}
        ask = client(FrontDoor(recorded, drafting), **key)
        assert (await ask.post("/v1/chat/completions", json={**CHAT, **sent})).is_success
        request = ChatCompletionRequest(**recorded.body)
        seen[tenant] = domain_of(request.to_sampling_params(16, {}))
        assert seen[tenant] == bytes.fromhex(drafting.domain_of(tenant))
    assert seen["ada"] != seen["bob"]


async def test_without_drafts_nothing_is_told(
    policy: FrontDoorPolicy, recorded: Any, client: Client
) -> None:
    """An engine that drafts nothing needs no domain."""
    await client(FrontDoor(recorded, policy)).post("/v1/chat/completions", json=CHAT)
    assert "vllm_xargs" not in recorded.body


@pytest.mark.parametrize(
    "params",
    [
        None,
        SimpleNamespace(),
        SimpleNamespace(extra_args=None),
        *(
            SimpleNamespace(extra_args={DOMAIN: value})
            for value in (None, 7, "", HEX[:-1], HEX + "0", "zz" * 32)
        ),
    ],
)
def test_what_is_no_domain_shares_nothing(params: Any) -> None:
    """Never another domain, and never an error in an engine step."""
    assert domain_of(params) == b""


def test_a_worker_is_told_the_domain_with_the_whole_context() -> None:
    """Once, and again when it is sent everything again."""
    ledger = DraftLedger(100, ())
    context = np.arange(5, dtype=np.int32)
    domain = bytes.fromhex(HEX)
    told = []
    for step, length in enumerate((3, 5, 2)):
        batch, _ = ledger.news(step, {1: Row(context[:length], 4, domain)}, 0.0)
        ledger.sent(batch)
        told += [(ask.base, ask.domain) for ask in batch.asks]
    assert told == [(0, domain), (3, b""), (0, domain)]


def test_the_proposer_reads_the_domain_of_each_request() -> None:
    """From the sampling parameters; requests without any share nothing."""
    seen: dict[int, bytes] = {}

    class Pool:
        chosen_s = 0.0

        def exchange(
            self, step: Mapping[int, Row], forget: Collection[int], deadline_s: float, _: Any = None
        ) -> None:
            seen.update({session: row.domain for session, row in step.items()})

        def draft(self, session: int, context: Any, wanted: int) -> None:
            return None

    def request(params: Any) -> SimpleNamespace:
        return SimpleNamespace(num_prompt_tokens=3, sampling_params=params)

    runner = SimpleNamespace(
        max_model_len=64,
        input_batch=SimpleNamespace(req_ids=["a", "b"]),
        requests={
            "a": request(SimpleNamespace(max_tokens=9, extra_args={DOMAIN: HEX})),
            "b": request(None),
        },
    )
    model = SimpleNamespace(get_vocab_size=lambda: 100)
    proposer = Proposer(SimpleNamespace(model_config=model))
    settings = ProposerSettings(4, 2, False, 0.5, 0.02)
    lengths = DraftLengths(GovernorSettings(4))
    proposer.connect(runner, cast(DraftPool, Pool()), StepWatch(), settings, lengths)
    tokens = np.ones((2, 64), dtype=np.int32)
    proposer.propose([[1], [1]], np.array([4, 4], dtype=np.int32), tokens)
    assert proposer.failures == 0
    assert seen == {1: bytes.fromhex(HEX), 2: b""}
