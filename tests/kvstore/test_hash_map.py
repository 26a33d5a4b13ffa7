"""A map of 64-bit numbers in arrays: what a dict does, in less room."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.hash_map import FULLEST, SMALLEST, STANDS_FOR_0, HashMap

FEW = st.integers(0, 40)
"""Keys that come again. Multiples of 2**32 begin at one place, and so push each other on."""
keys = st.one_of(FEW, FEW.map(lambda n: n << 32), st.integers(0, 2**64 - 1)).filter(
    lambda key: key != STANDS_FOR_0
)
steps = st.lists(
    st.tuples(st.sampled_from(["insert", "remove"]), st.lists(keys, max_size=60)), max_size=40
)


def array(numbers: list[int]) -> np.ndarray:
    return np.array(numbers, dtype=np.uint64)


@given(steps)
@settings(deadline=None)
def test_it_maps_as_a_dict_does(todo: list[tuple[str, list[int]]]) -> None:
    """Whatever is inserted and removed, in whatever order, 0 included."""
    held, model, count = HashMap(), dict[int, int](), 0
    for step, numbers in todo:
        if step == "insert":
            values = list(range(count, count + len(numbers)))
            count += len(numbers)
            expected = []
            for key, value in zip(numbers, values, strict=True):
                expected.append(key not in model)
                model.setdefault(key, value)
            assert held.insert(array(numbers), array(values)).tolist() == expected
        else:
            gone = [model.pop(key) for key in numbers if key in model]
            assert held.remove(array(numbers)).tolist() == gone
        assert len(held) == len(model)
        assert sorted(held.values().tolist()) == sorted(model.values())
        assert all(held.get(key) == value for key, value in model.items())
        assert all(held.get(key) is None for key in numbers if key not in model)


def test_0_and_the_number_that_stands_for_it_are_one_key() -> None:
    """A look-up then finds the other's value: once in 2^63, and a wrong hint at worst."""
    held = HashMap()
    assert held.insert(array([0, STANDS_FOR_0]), array([1, 2])).tolist() == [True, False]
    assert held.get(STANDS_FOR_0) == 1


def test_it_grows_with_what_is_in_it_and_shrinks_when_cleared() -> None:
    """At most 40 bytes an entry, once it is more than the smallest."""
    held, rng = HashMap(), np.random.default_rng(0)
    for _ in range(40):
        some = rng.integers(1, 2**63, 1000, dtype=np.uint64)
        assert held.insert(some, some).all()
        assert held.nbytes <= max(16 * SMALLEST, 2 * 16 / FULLEST * len(held))
    assert len(held) == 40_000
    held.clear()
    assert (len(held), held.nbytes, held.get(1)) == (0, 16 * SMALLEST, None)
