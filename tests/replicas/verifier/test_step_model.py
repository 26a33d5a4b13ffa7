"""The step model against synthetic truths: noise, outliers, drift, and steps of all shapes."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicas.verifier.step_cost import TABLE_ROWS, StepCost, StepLoad
from replicas.verifier.step_model import StepModel

TRUTH = StepCost(0.012, 0.002, 1e-7, 2e-7, sequence_s=0.001)
SHAPES = (1, 2, 4, 8, 16, 32, 64)


def loads(count: int, rows: tuple[int, int] = (1, 16), seed: int = 0) -> list[StepLoad]:
    """Steps of batches that change slowly, each with some drafts."""
    generator = random.Random(seed)
    made = []
    for i in range(count):
        sequences = rows[0] + (i // 20) % (rows[1] - rows[0] + 1)
        contexts = [generator.randrange(50, 4000) for _ in range(sequences)]
        drafts = [generator.randrange(0, 5) for _ in contexts]
        made.append(
            StepLoad(
                sequences + sum(drafts),
                sum(contexts),
                sum(c * d for c, d in zip(contexts, drafts, strict=True)),
                sequences,
            )
        )
    return made


def taught(
    model: StepModel,
    truth: StepCost,
    steps: list[StepLoad],
    noise: float = 0.0,
    outliers: float = 0.0,
    seed: int = 1,
) -> None:
    generator = random.Random(seed)
    for load in steps:
        seconds = truth.seconds(load) * max(0.1, generator.gauss(1.0, noise))
        if generator.random() < outliers:
            seconds *= 30
        model.saw(load, seconds)


def assert_knows(model: StepModel, truth: StepCost, within: float) -> None:
    for load in loads(200, seed=99):
        assert model.cost.seconds(load) == pytest.approx(truth.seconds(load), rel=within)


@pytest.mark.parametrize("seed", range(5))
def test_short_steps_are_known_as_well_as_long_ones_between_them(seed: int) -> None:
    """Noise is a part of a step: that of long contexts hides nothing of the short ones."""
    truth, model = StepCost(0.01, 0.001, 2e-6), StepModel()
    short, long = StepLoad(8, 800, 0, 8), StepLoad(8, 100_000, 0, 8)
    taught(model, truth, [short, long, long] * 150, noise=0.2, seed=seed)
    assert model.cost.seconds(short) == pytest.approx(truth.seconds(short), rel=0.12)
    assert model.cost.seconds(long) == pytest.approx(truth.seconds(long), rel=0.12)


def test_a_straight_truth_is_found() -> None:
    """Without noise nearly exactly, after 400 steps."""
    model = StepModel()
    taught(model, TRUTH, loads(400))
    assert_knows(model, TRUTH, 0.03)
    assert model.cost.row_s == pytest.approx(TRUTH.row_s, rel=0.05)
    assert model.cost.sequence_s == pytest.approx(TRUTH.sequence_s, rel=0.2)
    assert model.error < 0.03


def test_noise_and_outliers_move_it_little() -> None:
    """Ten per cent of noise, and one step in fifty that takes thirty times as long."""
    model = StepModel()
    taught(model, TRUTH, loads(800), noise=0.1, outliers=0.02)
    assert_knows(model, TRUTH, 0.15)


@pytest.mark.parametrize("factor", [0.4, 2.5])
def test_it_follows_a_machine_that_changes_its_speed(factor: float) -> None:
    """Within 800 steps to 30 per cent, be it faster or slower from one step to the next."""
    model = StepModel()
    taught(model, TRUTH, loads(800), noise=0.05)
    other = StepCost(*(factor * s for s in (0.012, 0.002, 1e-7, 2e-7)), sequence_s=factor * 0.001)
    taught(model, other, loads(800, seed=5), noise=0.05)
    assert_knows(model, other, 0.3)


def test_execution_shapes_are_a_staircase() -> None:
    """A step of nine rows costs what one of sixteen does, and eight cost less."""
    truth = StepCost(0.01, 0.001, shapes=SHAPES)
    model = StepModel(SHAPES)
    generator = random.Random(3)
    for _ in range(500):
        load = StepLoad(generator.randrange(1, 33))
        model.saw(load, truth.seconds(load) * generator.gauss(1.0, 0.03))
    seconds = [model.cost.seconds(StepLoad(rows)) for rows in range(1, 33)]
    assert seconds[8] == pytest.approx(seconds[15])
    assert seconds[8] - seconds[7] == pytest.approx(0.008, rel=0.2)


def test_a_truth_that_is_not_straight_is_found_where_it_was_seen() -> None:
    """Rows that cost nothing up to a tile's end, and then a whole tile: knots hold it."""

    def seconds(rows: int) -> float:
        return 0.01 + 0.01 * ((rows - 1) // 16)

    model, generator = StepModel(), random.Random(4)
    for _ in range(1500):
        rows = generator.randrange(1, 41)
        model.saw(StepLoad(rows), seconds(rows) * generator.gauss(1.0, 0.03))
    for rows in (2, 8, 14, 20, 30, 36):
        assert model.cost.seconds(StepLoad(rows)) == pytest.approx(seconds(rows), rel=0.15)


def test_what_one_batch_teaches_is_not_lost_in_another() -> None:
    """A thousand steps of one row leave what sixteen cost about as it was."""
    model = StepModel()
    taught(model, TRUTH, loads(800), noise=0.05)
    taught(model, TRUTH, [StepLoad(1, 500)] * 1000, noise=0.05)
    assert_knows(model, TRUTH, 0.3)


def test_the_same_samples_give_the_same_model() -> None:
    """To the bit."""
    models = [StepModel(), StepModel()]
    for model in models:
        taught(model, TRUTH, loads(300), noise=0.1, outliers=0.02)
    assert models[0].cost == models[1].cost


@given(
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 10**6), st.floats(0, 100)), max_size=60)
)
def test_whatever_it_sees_a_longer_step_never_costs_less(
    samples: list[tuple[int, int, float]],
) -> None:
    """No coefficient is below zero, and time never falls with rows, nor is it none."""
    model = StepModel()
    for rows, context, seconds in samples:
        model.saw(StepLoad(rows, context), seconds)
    cost = model.cost
    assert min(cost.fixed_s, cost.row_s, cost.kv_s, cost.draft_kv_s, cost.sequence_s) >= 0
    assert (cost.table > 0).all()
    assert (cost.table[1:] >= cost.table[:-1]).all()


def test_more_rows_than_the_table_has_go_on_with_the_slope() -> None:
    """A thousand rows more cost a thousand times a row."""
    cost = StepCost(0.01, 0.001)
    more_s = cost.seconds(StepLoad(TABLE_ROWS + 1000)) - cost.seconds(StepLoad(TABLE_ROWS))
    assert more_s == pytest.approx(1.0)
