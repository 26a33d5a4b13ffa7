"""Which batches are new, which come twice, and which are missing."""

from hypothesis import given
from hypothesis import strategies as st

from kvstore.ngram_origins import MAX_ORIGINS, WINDOW, Origins


@given(st.lists(st.integers(1, WINDOW), max_size=100))
def test_each_number_is_new_once_whatever_the_order(numbers: list[int]) -> None:
    """Within the window; and what is missing is what lies between and has not come."""
    origins = Origins()
    origins.saw("a", 1)
    seen = {1}
    for number in numbers:
        arrival = origins.saw("a", number)
        assert arrival == ("twice" if number in seen else "new")
        seen.add(number)
        assert origins.missing == max(seen) - len(seen)


def test_what_is_older_than_the_window_counts_as_twice() -> None:
    """Its memory ends somewhere, and a text less is better than a text twice."""
    origins = Origins()
    assert origins.saw("a", 1_000) == "new"
    assert origins.saw("a", 1_000 - WINDOW) == "twice"
    assert origins.saw("a", 1_001 - WINDOW) == "new"
    assert origins.saw("a", 10_000) == "new"
    assert origins.saw("a", 9_999) == "new"


def test_workers_are_told_apart_and_there_may_be_only_so_many() -> None:
    """Numbers of one say nothing of another's; the latest workers are remembered."""
    origins = Origins()
    for number in range(MAX_ORIGINS + 10):
        assert origins.saw(str(number), 7) == "new"
    assert origins.missing == 0
    assert len(origins._seen) == MAX_ORIGINS
    assert origins.saw(str(MAX_ORIGINS), 7) == "twice"
