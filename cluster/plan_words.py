"""Says with rich tables what `paceline plan` has found."""

from rich.console import Group, RenderableType
from rich.text import Text

from cluster.model_plans import WAYS, best_of_each
from cluster.planner import DraftModel, Plan, Profile
from cluster.render import table_of


def plan(made: Plan) -> RenderableType:
    """Which draft lengths pay, and what they follow from."""
    profile, cost = made.profile, made.profile.cost
    places = " ".join(f"{rate:.0%}" for rate in profile.acceptance)
    shapes = f", padded to {', '.join(map(str, cost.shapes))} rows" if cost.shapes else ""
    table = table_of(
        "sequences", right=("length", "tokens a step", "step", "ms a token", "without", "speed-up")
    )
    for choice in made.choices:
        table.add_row(
            str(choice.sequences),
            str(choice.length),
            f"{choice.drafted.tokens:.2f}",
            f"{choice.drafted.seconds * 1e3:.1f} ms",
            f"{choice.drafted.token_s * 1e3:.2f}",
            f"{choice.plain.token_s * 1e3:.2f}",
            f"{choice.speedup:.2f}",
        )
    if made.break_even == 1:
        end = "Do not speculate: no draft pays at any load."
    elif made.break_even is None:
        end = f"Drafts pay at every load up to {made.schedule[-1][0]} sequences."
    else:
        end = f"From {made.break_even} sequences a step on no draft pays."
    steps = ", ".join(f"{{max_batch: {batch}, length: {k}}}" for batch, k in made.schedule)
    parts: list[RenderableType] = [
        Text(
            f"a step: {cost.fixed_s * 1e3:.2f} ms + {cost.row_s * 1e3:.3f} ms a row + "
            f"{cost.sequence_s * 1e3:.3f} ms a sequence + "
            f"{cost.kv_s * 1e9:.1f} ns a KV token + {cost.draft_kv_s * 1e9:.1f} ns a KV token of "
            f"drafts{shapes} ({profile.samples} steps seen)"
        ),
        Text(
            f"drafts: accepted by place {places}; found in {profile.found:.0%} of asks, which "
            f"wait {profile.wait_s * 1e3:.1f} ms a step; contexts of {profile.context:.0f} tokens"
        ),
        table,
        Text(end),
        Text(f"drafting.colocated.schedule: [{steps}]"),
    ]
    if profile.model is not None:
        parts += _model_ways(profile, profile.model, made)
    return Group(*parts)


def _model_ways(profile: Profile, model: DraftModel, made: Plan) -> list[RenderableType]:
    """Where the draft model should run."""
    table = table_of("sequences", right=tuple(f"{way}, ms a token" for way in WAYS))
    longest = len(profile.acceptance)
    for choice in made.choices:
        best = best_of_each(profile, model, choice.sequences, longest)
        table.add_row(
            str(choice.sequences),
            *(
                f"{best[way].round.token_s * 1e3:.2f} (length {best[way].length})"
                if way in best
                else "-"
                for way in WAYS
            ),
        )
    return [
        Text(
            f"the draft model takes {model.worker_s * 1e3:.1f} ms a token in its worker, "
            f"{model.trip_s * 1e3:.2f} ms away from here; in the verifier it is counted with "
            f"{model.verifier_s * 1e3:.1f} ms; it was prepared for {model.prepared:.0%} of what it "
            "did not expect"
        ),
        table,
    ]
