"""Profiles: what verifiers report becomes what is planned from, and survives a file."""

import io
from pathlib import Path

import msgspec
import pytest
from draft_reports import draft_report
from rich.console import Console

from cluster import plan_words, render
from cluster.errors import NoProfile
from cluster.planner import DraftModel, plan
from cluster.profile import LEAST_SAMPLES, load, model_of, profile_file, profile_of, save
from kvstore.draft_report import DraftModelReport, DraftWorkerReport
from kvstore.verifier_report import GovernorReport, StepCostReport, VerifierReport


def governor(samples: int, row_s: float = 0.002, **changes: object) -> GovernorReport:
    report = GovernorReport(
        mode="auto",
        pressure=0,
        lengths=[10, 5, 0, 0, 20],
        reason="pays",
        expected_tokens=100.0,
        real_tokens=98.0,
        mean_length=2.5,
        mean_rows=3.0,
        mean_context=250.0,
        mean_found=0.75,
        acceptance=[0.7, 0.6, 0.5, 0.4],
        gain=0.7,
        gain_needed=0.2,
        token_s=0.01,
        wait_s=0.0005,
        probes=2,
        step=StepCostReport(
            *(0.012, row_s, 1e-7, 2e-7), knot_rows=[1, 5], knot_s=[0.0, 0.001], samples=samples
        ),
    )
    return msgspec.structs.replace(report, **changes)


def verifier(its_governor: GovernorReport | None) -> VerifierReport:
    texts = dict.fromkeys(("worker_id", "node_ip", "model", "weights_fingerprint"), "x")
    fields = {field.name: 0 for field in msgspec.structs.fields(VerifierReport) if field.required}
    fields |= texts | {"accepted_per_position": [], "governor": its_governor}
    return VerifierReport(**fields)


def draft_worker(model: DraftModelReport | None) -> DraftWorkerReport:
    return draft_report(endpoint="tcp://127.0.0.1:1", model=model)


def test_the_verifier_that_has_seen_most_is_planned_from() -> None:
    """Its step cost with its knots, and its drafts."""
    reports = [verifier(governor(LEAST_SAMPLES)), verifier(governor(10**4, row_s=0.003))]
    profile = profile_of([*reports, verifier(None)])
    assert profile.cost.row_s == 0.003
    assert profile.cost.knots == ((1, 0.0), (5, 0.001))
    assert profile.acceptance == (0.7, 0.6, 0.5, 0.4)
    assert (profile.found, profile.wait_s, profile.context) == (0.75, 0.0005, 250.0)


@pytest.mark.parametrize(
    ("reports", "why"),
    [
        ([], "no verifier reports"),
        ([verifier(None)], "no verifier reports"),
        ([verifier(governor(LEAST_SAMPLES - 1))], "answer more requests"),
    ],
)
def test_without_enough_there_is_no_profile(reports: list[VerifierReport], why: str) -> None:
    """And what to do about it is said."""
    with pytest.raises(NoProfile, match=why):
        profile_of(reports)


def test_the_draft_model_is_the_first_that_was_used() -> None:
    """What it takes a token, and for how much of what it did not expect it was prepared."""
    idle = DraftModelReport(
        **{field.name: 0 for field in msgspec.structs.fields(DraftModelReport)} | {"name": "x"}
    )
    used = msgspec.structs.replace(idle, step_s=0.05, followed=90, branched=6, restarted=4)
    assert model_of([draft_worker(None), draft_worker(idle)]) is None
    model = model_of([draft_worker(idle), draft_worker(used)])
    assert model is not None
    assert (model.worker_s, model.verifier_s, model.prepared) == (0.05, 0.05, 0.6)


def test_a_profile_survives_its_file(tmp_path: Path) -> None:
    """Beside the cluster's own; a missing or broken one is said to be so."""
    file = profile_file(tmp_path / "cluster.yaml")
    assert file == tmp_path / "cluster.profile.json"
    with pytest.raises(NoProfile, match="--measure"):
        load(file)
    profile = profile_of([verifier(governor(500))])
    save(profile, file)
    assert load(file) == profile
    file.write_text('{"cost": 3}')
    with pytest.raises(NoProfile, match="is no profile"):
        load(file)


def shown(what: object) -> str:
    console = Console(width=200, file=io.StringIO())
    console.print(what)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_plan_is_told_with_its_arithmetic() -> None:
    """Step cost, acceptance, lengths by load, the break-even and vLLM's schedule."""
    profile = profile_of([verifier(governor(500))])
    text = shown(plan_words.plan(plan(profile, 4, (1, 4, 16))))
    for words in ("12.00 ms + 2.000 ms a row", "70% 60% 50% 40%", "speed-up", "{max_batch: "):
        assert words in text
    assert "sequences a step on no draft pays" in text


def test_a_plan_says_where_a_draft_model_should_run() -> None:
    """With the best length of each way; without a model there is nothing to say."""
    model = DraftModel(worker_s=0.004, verifier_s=0.003, trip_s=0.0002)
    with_model = shown(plan_words.plan(plan(profile_of([verifier(governor(500))], model), 4, (1,))))
    for words in ("4.0 ms a token in its worker", "0.20 ms away", "split, ahead", "(length "):
        assert words in with_model
    without = shown(plan_words.plan(plan(profile_of([verifier(governor(500))]), 4, (1,))))
    assert "split, ahead" not in without


def test_where_drafting_is_is_said_in_words_and_in_order() -> None:
    """Acceptance, draft cost, length, batch, and the reason."""
    text = render.drafting_words(governor(500, pressure=2))
    places = [text.index(word) for word in ("acceptance", "needs", "length", "batch", "pressure")]
    assert places == sorted(places)
    assert "expected to save time" in text
    idle = render.drafting_words(governor(0, lengths=[0, 0]))
    assert "nothing decoded yet" in idle
