"""A Prometheus counter for what is known as a total.

Ray's counters are told what was added, and refuse to grow by nothing.
"""

from ray.serve.metrics import Counter


class TotalCounter:
    """Exports the growth of a total that somebody else keeps.

    Args:
        name: Of the metric.
        description: What it counts, and in which unit.
        labels: Their names; `reach` takes a value for each.
    """

    def __init__(self, name: str, description: str, *labels: str) -> None:
        self._labels = labels
        self._reached: dict[tuple[str, ...], float] = {}
        self._counter = Counter(name, description=description, tag_keys=labels)

    def reach(self, total: float, *values: str) -> None:
        """The total is now `total`; one below what was told before changes nothing.

        Args:
            total: Since the start.
            values: Of the labels.
        """
        more = total - self._reached.get(values, 0.0)
        if more > 0:
            self._counter.inc(more, tags=dict(zip(self._labels, values, strict=True)))
            self._reached[values] = total
