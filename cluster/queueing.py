"""Waiting in a queue with one server, Poisson arrivals and any service: M/G/1 (Kendall 1953).

With `left_s` the mean of what is left of a service that runs, which is `s (1 + c^2) / 2` of the
mean service s with spread c, and `room` the part of time that those leave who are served first or
came before, those who have to wait at all wait `left_s / room` in the mean, and about
exponentially. In one queue `room` is `1 - rho`: the Pollaczek-Khinchine formula.
"""

import math


def wait_s(left_s: float, room: float) -> float:
    """Mean wait of those who have to wait, seconds; infinite where there is no room."""
    return left_s / room if room > 0.0 else math.inf


def wait_quantile_s(rho: float, left_s: float, room: float, part: float) -> float:
    """The wait that `part` (0-1) of the requests stay below, seconds.

    Exact for M/M/1, where `P(W > t) = rho exp(-t (1 - rho) / s)`; rho is the part of time that the
    server is busy, and may be above 1 where others are served first.
    """
    busy = min(rho, 1.0)
    return wait_s(left_s, room) * math.log(busy / (1.0 - part)) if busy > 1.0 - part else 0.0


def spread_of(mean: float, square: float) -> float:
    """c^2 of what has this mean, and this mean of its squares."""
    return max(0.0, square / mean / mean - 1.0) if mean else 0.0
