"""What is known to follow a context, and what is still to come."""

import math

import numpy as np
import pytest

from replicas.messages import Tokens
from replicas.verifier.continuations import Continuation, Known
from replicas.verifier.patience import Outlook

MODEL, LOOKUP = "worker:model", "worker:prompt_lookup"
NOW_S = 100.0


def text(*tokens: int) -> Tokens:
    return np.array(tokens, dtype=np.int32)


def known(*said: Continuation) -> Known:
    one = Known()
    for continuation in said:
        one.add(continuation, NOW_S)
    return one


def test_nobody_knows_before_the_worker_has_spoken() -> None:
    """Unless an earlier answer reaches far enough."""
    context = text(1, 2, 3)
    assert Known().outlook(context, 2, NOW_S) is None
    earlier = known(Continuation(2, text(3, 4, 5), MODEL))
    assert earlier.outlook(context, 2, NOW_S) == Outlook(2)
    assert earlier.outlook(context, 3, NOW_S) is None


def test_more_is_to_come_when_the_worker_said() -> None:
    """And what is late by a while is expected after another while."""
    context = text(1, 2)
    one = known(Continuation(2, text(3), MODEL, next_s=0.5, token_s=0.1))
    assert one.outlook(context, 3, NOW_S) == Outlook(1, 0.5, 0.1)
    late = one.outlook(context, 3, NOW_S + 0.75)
    assert late is not None
    assert late.next_s == pytest.approx(0.25)


def test_a_last_answer_is_the_last() -> None:
    one = known(
        Continuation(2, text(3), MODEL, next_s=0.5, token_s=0.1),
        Continuation(2, text(3, 4), MODEL),
    )
    assert one.outlook(text(1, 2), 3, NOW_S) == Outlook(2, math.inf)


def test_what_only_stands_in_does_not_count() -> None:
    """The draft model's tokens will take its place."""
    one = known(Continuation(2, text(3, 4), LOOKUP, 0.3, next_s=0.5, token_s=0.1))
    assert one.outlook(text(1, 2), 2, NOW_S) == Outlook(0, 0.5, 0.1)
