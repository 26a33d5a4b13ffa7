"""A router's copy of an engine's blocks is right, or nothing: whatever is lost on the way."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from scripted_engine import BLOCK, WEIGHTS, ScriptedEngine

from kvstore.hashing import Naming
from kvstore.kv_account import KvAccount, Taken
from kvstore.kv_feed import DOUBTFUL_AFTER_S, KvFeed
from kvstore.kv_messages import Delta, SnapshotPart
from kvstore.prefix_index import PrefixIndex

FATES = ("arrives", "arrives", "lost", "twice", "late", "early")
prompts = st.lists(st.integers(0, 3), min_size=BLOCK, max_size=5 * BLOCK)
Message = Delta | SnapshotPart


def receive(account: KvAccount, engine: ScriptedEngine, number: int, payload: bytes) -> None:
    """What the relay does with a batch: where some are missing it asks the engine again."""
    if account.take(number, payload) is not Taken.GAP:
        return
    for past in engine.replay(account.next_batch):
        if account.take(*past) is Taken.GAP:
            break
    if account.take(number, payload) is Taken.GAP:
        account.restart(at=number)
        account.take(number, payload)


class Copies(RuleBasedStateMachine):
    """An engine, its relay's account, a lossy network, and a router's copy."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = ScriptedEngine(keeps=3)
        self.account = KvAccount(Naming(WEIGHTS, BLOCK))
        self.index = PrefixIndex(1000)
        self.feed = KvFeed(self.index, "v")
        self.from_engine: list[tuple[int, bytes]] = []
        self.to_router: list[Message] = []
        self.history: dict[tuple[int, int], set[int]] = {}
        self.now_s = 0.0
        self.seen_epoch = self.account.epoch
        self.note()

    def note(self) -> None:
        """What the account holds under its present number."""
        held = self.account._held.tiers().get("device", set())
        self.history[self.account.epoch, self.account.sequence] = held

    @rule(tokens=prompts)
    def the_engine_computes(self, tokens: list[int]) -> None:
        self.from_engine.append(self.engine.store(tokens))

    @rule(place=st.integers(0, 100))
    def the_engine_evicts(self, place: int) -> None:
        self.from_engine.append(self.engine.evict(place))

    @rule()
    def the_engine_clears(self) -> None:
        self.from_engine.append(self.engine.clear())

    @rule()
    def the_engine_restarts(self) -> None:
        self.engine.restart()
        self.from_engine = [self.engine.store([0] * BLOCK)]

    @rule(place=st.integers(0, 5))
    def a_batch_is_lost(self, place: int) -> None:
        if self.from_engine:
            del self.from_engine[place % len(self.from_engine)]

    @rule(place=st.integers(0, 5))
    def a_batch_comes_twice(self, place: int) -> None:
        if self.from_engine:
            self.from_engine.append(self.from_engine[place % len(self.from_engine)])

    @rule()
    def the_relay_works(self) -> None:
        for number, payload in self.from_engine:
            receive(self.account, self.engine, number, payload)
        self.from_engine.clear()
        delta = self.account.delta()
        self.note()
        if self.account.epoch != self.seen_epoch:
            self.seen_epoch = self.account.epoch
            self.to_router += self.account.snapshot()
        else:
            self.to_router.append(delta)

    @rule(tokens=prompts, place=st.integers(0, 100), fate=st.sampled_from(FATES))
    def a_step_goes_all_the_way(self, tokens: list[int], place: int, fate: str) -> None:
        """The usual: the engine works, the relay tells, the router reads; or not quite."""
        self.the_engine_computes(tokens)
        if place % 3 == 0:
            self.the_engine_evicts(place)
        self.the_relay_works()
        if fate == "lost":
            self.to_router.pop()
        elif fate == "twice":
            self.to_router.append(self.to_router[-1])
        elif fate == "early":
            self.to_router.insert(0, self.to_router.pop())
        if fate != "late":
            self.the_router_reads(len(self.to_router))

    @rule()
    def the_router_catches_up(self) -> None:
        self.the_relay_works()
        self.the_router_asks()
        self.the_router_reads(len(self.to_router))

    @rule(count=st.integers(1, 10))
    def the_router_reads(self, count: int) -> None:
        for message in self.to_router[:count]:
            self.feed.take(message, self.now_s)
        del self.to_router[:count]

    @rule()
    def the_router_asks(self) -> None:
        if self.feed.needs_resync:
            self.to_router += self.account.snapshot()

    @rule()
    def there_is_silence(self) -> None:
        self.now_s += DOUBTFUL_AFTER_S + 1
        assert self.feed.is_doubtful(self.now_s)

    @invariant()
    def the_copy_is_what_the_account_was_or_nothing(self) -> None:
        """Never a mixture: exactly the account at the copy's own number."""
        copy = set().union(*self.index._held.get("v", {}).values())
        if self.feed.needs_resync:
            assert not copy
        else:
            assert copy == self.history[self.feed._epoch, self.feed._sequence]

    @invariant()
    def the_count_is_right(self) -> None:
        """The bound is kept by a count that never drifts."""
        assert len(self.index) == sum(map(len, self.index._held.get("v", {}).values()))

    def teardown(self) -> None:
        """In quiet times, one more batch and two rounds of asking make the copy the engine's."""
        self.the_engine_evicts(0)
        self.the_relay_works()
        for _ in range(2):
            self.the_relay_works()
            self.the_router_reads(len(self.to_router))
            self.the_router_asks()
            self.the_router_reads(len(self.to_router))
        copy = set().union(*self.index._held.get("v", {}).values())
        known = self.account._held.tiers().get("device", set())
        assert copy == known
        assert known <= set(self.engine.held.values())
        if not self.account.restarts:  # Else what was held before is never told again.
            assert known == set(self.engine.held.values())


Copies.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
test_copies_follow_their_engine = Copies.TestCase
