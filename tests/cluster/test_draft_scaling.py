"""How many draft workers: none where they don't pay, trials, and by load where they do."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.draft_scaling import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    DraftMemory,
    DraftUse,
    wanted_workers,
)

PAYING = DraftUse(
    allowed=True, output_tokens=1000, accepted_tokens=400, asks=500, workers=1, busy=0.3, sessions=8
)
USELESS = replace(PAYING, accepted_tokens=5)


def ask(use: DraftUse, memory: DraftMemory, now_s: float, growth=1.0, settled=True):
    """One decision with a window of 60 s and 120 s to keep."""
    return wanted_workers(
        use, memory, growth=growth, settled=settled, trial_s=60.0, keep_s=120.0, now_s=now_s
    )


def test_without_requests_none_is_wanted() -> None:
    """Start-up stays at the fewest."""
    wanted, _ = ask(DraftUse(allowed=True), DraftMemory(), 0.0)
    assert (wanted.up, wanted.keep) == (0, 0)


def test_the_first_requests_begin_a_trial() -> None:
    """One worker is started, and its trial counts from when it is there."""
    asked = replace(USELESS, workers=0)
    wanted, memory = ask(asked, DraftMemory(), 0.0)
    assert wanted.up == 1
    _, memory = ask(asked, memory, 50.0)
    assert ask(USELESS, memory, 100.0)[0].up == 1
    assert ask(USELESS, memory, 120.0)[0].up == 0


def test_drafts_that_do_not_pay_let_the_workers_go_for_longer_and_longer() -> None:
    """After each failed trial the pause is twice as long, up to an hour."""
    memory, now_s, pauses = DraftMemory(), 0.0, []
    for _ in range(6):
        _, memory = ask(USELESS, memory, now_s)  # the trial begins
        now_s += 61.0
        wanted, memory = ask(USELESS, memory, now_s)
        assert wanted.up == 0
        pauses.append(memory.paused_until_s - now_s)
        assert ask(USELESS, memory, memory.paused_until_s - 1.0)[0].up == 0
        now_s = memory.paused_until_s
    assert pauses[0] == FIRST_PAUSE_S
    assert pauses[-1] == LONGEST_PAUSE_S
    assert all(later >= earlier for earlier, later in pairwise(pauses))


def test_a_trial_that_pays_ends_the_pauses() -> None:
    """From then on load decides, and the next pause is the first again."""
    paused = DraftMemory(paused_until_s=0.0, pause_s=1200.0)
    _, memory = ask(USELESS, paused, 1.0)
    wanted, memory = ask(PAYING, memory, 30.0)
    assert wanted.up == 1
    assert memory.paying
    assert memory.pause_s == FIRST_PAUSE_S


def test_few_tokens_conclude_nothing() -> None:
    """Neither that drafts pay nor that they don't."""
    few = replace(USELESS, output_tokens=50)
    assert ask(few, DraftMemory(paying=True), 0.0)[0].up == 1
    assert ask(few, DraftMemory(trial_since_s=0.0), 500.0)[0].up == 1


def test_busy_workers_get_company_and_follow_the_verifiers() -> None:
    """1.5 workers' work at 0.6 each needs three; twice the verifiers need six."""
    busy = replace(PAYING, workers=2, busy=1.5)
    assert ask(busy, DraftMemory(paying=True), 0.0)[0].up == 3
    assert ask(busy, DraftMemory(paying=True), 0.0, growth=2.0)[0].up == 5


def test_late_drafts_ask_for_one_more_and_it_is_kept() -> None:
    """The number that was too small is not gone back to while as many sessions are there."""
    late = replace(PAYING, misses=100)
    wanted, memory = ask(late, DraftMemory(paying=True), 0.0)
    assert wanted.up == 2
    calm = replace(PAYING, workers=2)
    assert ask(calm, memory, 600.0)[0].up == 2
    assert ask(replace(calm, sessions=2), memory, 600.0)[0].up == 1
    assert ask(calm, memory, 1300.0)[0].up == 1


def test_late_drafts_while_one_starts_ask_for_no_more() -> None:
    """What is on its way is waited for."""
    late = replace(PAYING, misses=100)
    assert ask(late, DraftMemory(paying=True), 0.0, settled=False)[0].up == 1


def test_where_nobody_may_draft_none_is_wanted() -> None:
    """By mode or pressure; a running trial is over."""
    wanted, memory = ask(replace(PAYING, allowed=False), DraftMemory(trial_since_s=0.0), 5.0)
    assert wanted.up == 0
    assert memory.trial_since_s is None


number = st.floats(0, 1e6)
uses = st.builds(
    DraftUse,
    allowed=st.booleans(),
    output_tokens=number,
    accepted_tokens=number,
    asks=number,
    misses=number,
    evictions=number,
    workers=st.integers(0, 50),
    busy=st.floats(0, 50),
    sessions=number,
)


@settings(max_examples=40)
@given(st.lists(st.tuples(uses, st.floats(0.5, 500), st.floats(0, 4), st.booleans()), max_size=40))
def test_what_is_wanted_is_never_negative_and_keeps_what_it_needs(history) -> None:
    """Whatever is reported."""
    memory, now_s = DraftMemory(), 0.0
    for use, passed_s, growth, settled in history:
        now_s += passed_s
        wanted, memory = ask(use, memory, now_s, growth, settled)
        assert 0 <= wanted.up <= wanted.keep
        assert wanted.why
        assert FIRST_PAUSE_S <= memory.pause_s <= LONGEST_PAUSE_S
