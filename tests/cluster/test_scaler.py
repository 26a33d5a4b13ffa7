"""The whole decision over a fleet in simulated time: settles, follows, comes back, never flaps."""

import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from simulated_fleet import ENGINE, Request, SimulatedFleet, report_of

from cluster.scaler import Observation, Pool, Scaler
from configs.request_class import BATCH, INTERACTIVE
from configs.sections.scaling import AutoscalingConfig

CONFIG = AutoscalingConfig(max_verifiers=12, ttft_s=2.0, tpot_ms=100.0, batch_ttft_s=30.0)
PROMPT, OUTPUT = 1000, 200


TURN_S = 3
"""From one decision to the next; every second in a real cluster, which takes longer to replay."""


class Replay:
    """A scaler that is asked again and again while requests come."""

    def __init__(self, at_start: int, config: AutoscalingConfig = CONFIG, least: int = 1) -> None:
        self.config, self.least = config, least
        self.scaler = Scaler(config, least)
        self.fleet = SimulatedFleet(ENGINE)
        self.fleet.scale(at_start, 0.0, cold=False)
        self.requests: list[Request] = []
        self.reasons: list[str] = []
        self.now_s = 0.0

    def run(
        self, seconds: int, rate: Callable[[float], float], seed: int = 1, patient: float = 0.0
    ) -> list[int]:
        """Targets by second, with requests at exponential times; a part of them can wait."""
        rng, targets = random.Random(seed), []
        for _ in range(seconds):
            begin_s, self.now_s = self.now_s, self.now_s + 1.0
            count = sum(rng.random() < rate(begin_s) / 50 for _ in range(50))
            for at_s in sorted(begin_s + rng.random() for _ in range(count)):
                request = Request(at_s, rng.randint(1, 2 * PROMPT), rng.randint(1, 2 * OUTPUT))
                if patient and rng.random() < patient:
                    request.can_wait = True
                    request.targets = self.config.of_class(BATCH)
                self.requests.append(request)
                self.fleet.route(request)
            if int(self.now_s) % TURN_S == 0:
                self.fleet.tick(self.now_s, TURN_S)
                self.decide()
            targets.append(self.fleet.target)
        return targets

    def decide(self) -> None:
        """One turn."""
        there = self.fleet.running(self.now_s)
        told = self.scaler.decide(
            Observation(
                self.now_s,
                Pool(self.fleet.target, len(there)),
                verifier_reports=tuple(member.report(self.now_s) for member in there),
            )
        )
        self.reasons.append(told.verifiers.reason)
        self.fleet.scale(told.verifiers.target, self.now_s)


def changes(targets: list[int]) -> int:
    """How often neighbours differ."""
    return sum(a != b for a, b in pairwise(targets))


def test_start_up_without_traffic_stays_at_the_minimum() -> None:
    """Ten minutes of nothing start and stop nobody."""
    assert set(Replay(at_start=2, least=2).run(600, lambda _: 0.0)) == {2}


def test_requests_that_can_wait_need_fewer_verifiers() -> None:
    """Each class meets its own targets; with fewer verifiers than all would need as urgent ones."""
    config = CONFIG.model_copy(update={"ttft_s": 1.0, "tpot_ms": 200.0})
    urgent, mixed = (Replay(at_start=4, config=config) for _ in range(2))
    needed = urgent.run(1200, lambda _: 5.0)[-1]
    assert mixed.run(1200, lambda _: 5.0, patient=0.7)[-1] < needed
    late = [request for request in mixed.requests if 600 < request.at_s < 1100]
    for can_wait in (False, True):
        its = [request for request in late if request.can_wait == can_wait]
        targets = config.of_class(BATCH if can_wait else INTERACTIVE)
        assert sum(request.meets(*targets) for request in its) / len(its) >= 0.95
    assert "% of which can wait" in mixed.reasons[-1]


@pytest.mark.parametrize("seed", range(2))
def test_a_steady_load_settles_and_stays(seed: int) -> None:
    """After settling at most one change in twenty minutes, and targets are met."""
    replay = Replay(at_start=4)
    targets = replay.run(1800, lambda _: 5.0, seed)
    assert changes(targets[600:]) <= 1
    late = [r for r in replay.requests if 600 < r.at_s < 1700]
    assert sum(r.meets(2.0, 0.1) for r in late) / len(late) >= 0.95


def test_noise_of_twenty_percent_is_not_followed() -> None:
    """The rate swings every ten seconds; the number does not."""
    targets = Replay(at_start=4).run(1800, lambda s: 5.0 * (1.2 if int(s / 10) % 2 else 0.8))
    assert changes(targets[600:]) <= 1


def test_a_step_up_is_followed_in_steps_larger_than_one_and_stops_nobody() -> None:
    """While new ones start nobody is let go, and the queue is gone soon after they are there."""
    replay = Replay(at_start=2)
    targets = replay.run(1500, lambda s: 1.5 if s < 400 else 9.0)
    steps = [b - a for a, b in pairwise(targets[400:701])]
    assert max(steps) >= 2
    starting = [s for s, step in enumerate(steps) if step > 0][-1]
    assert min(steps[: starting + 60]) >= 0
    late = [r for r in replay.requests if 900 < r.at_s < 1400]
    assert sum(r.meets(2.0, 0.1) for r in late) / len(late) >= 0.95


def test_a_step_down_lets_go_once() -> None:
    """To what is needed, after `keep_s`, within a few decisions."""
    targets = Replay(at_start=8).run(1500, lambda s: 9.0 if s < 500 else 1.0)
    assert targets[500 + int(CONFIG.keep_s) - 20] >= targets[499] - 1
    assert targets[-1] <= 2
    assert changes(targets[500:]) <= 7


def test_traffic_that_ends_leaves_the_fewest() -> None:
    """Two minutes after the last request there is one."""
    targets = Replay(at_start=4).run(900, lambda s: 5.0 if s < 400 else 0.0)
    assert targets[-1] == 1


def test_a_scaler_that_starts_anew_changes_nothing_at_first() -> None:
    """A restarted controller, under full load, moves only after it has looked again."""
    replay = Replay(at_start=4)
    before = replay.run(900, lambda _: 5.0)[-1]
    replay.scaler = Scaler(CONFIG, 1)
    after = replay.run(int(CONFIG.keep_s), lambda _: 5.0, seed=2)
    assert set(after[: int(CONFIG.window_s / 4)]) == {before}
    assert min(after) >= before
    assert changes(after) <= 1


def test_counts_of_before_are_no_burst() -> None:
    """A verifier that had answered a million requests when the scaler started asks for nothing."""
    scaler = Scaler(CONFIG, 1)
    old = {"started_at_s": 1.0, "requests_started": 10**6, "requests_finished": 10**6}
    for second in range(300):
        report = report_of(ttft_count=10**6, output_tokens=10**8, busy_s=1e5, **old)
        told = scaler.decide(Observation(1e6 + second, Pool(1, 1), verifier_reports=(report,)))
        assert told.verifiers.target == 1
    assert told.measured_rate == 0.0


def test_a_registry_that_is_lost_changes_nothing() -> None:
    """Bounds hold, and the reason says why."""
    config = CONFIG.model_copy(update={"max_draft_workers": 3})
    told = Scaler(config, 1).decide(Observation(1.0, Pool(5, 5), Pool(2, 2)))
    assert told.verifiers.target == 5
    assert told.draft_workers.target == 2
    assert "registry" in told.verifiers.reason


def test_a_start_is_timed() -> None:
    """The forecast looks as far ahead as a start has been seen to take."""
    replay = Replay(at_start=1, config=CONFIG.model_copy(update={"cold_start_s": 5.0}))
    replay.run(600, lambda s: 1.0 if s < 200 else 6.0)
    assert 55 <= replay.scaler._starts.cold_start_s <= 65
