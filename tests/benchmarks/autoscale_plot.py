"""A small SVG: requests a second, and below it how many verifiers each arm had asked for."""

from collections.abc import Mapping, Sequence

WIDTH, HEIGHT, LEFT, GAP = 900, 190, 46, 34
COLORS = ("#0b6e4f", "#c8553d", "#4a5fc1")
BIN_S = 20.0


def plot(
    trace: Sequence[tuple[float, int, int]],
    timelines: Mapping[str, Sequence[tuple[float, int]]],
) -> str:
    """The picture.

    Args:
        trace: (seconds, prompt tokens, answer tokens) of each request.
        timelines: By arm, (seconds, number) at each change.
    """
    end_s = max(trace[-1][0], *(line[-1][0] for line in timelines.values()))
    bins = [0] * (int(end_s / BIN_S) + 1)
    for at_s, _, _ in trace:
        bins[int(at_s / BIN_S)] += 1
    rates = [(number * BIN_S, count / BIN_S) for number, count in enumerate(bins)]
    most = max(number for line in timelines.values() for _, number in line)
    height = 2 * HEIGHT + GAP + 20 * len(timelines) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + LEFT + 10} {height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        *_axes(16, "requests/s", max(rate for _, rate in rates), end_s),
        _line(rates, 16, max(rate for _, rate in rates), end_s, "#555"),
        *_axes(16 + HEIGHT + GAP, "verifiers", most, end_s),
    ]
    for place, (name, line) in enumerate(timelines.items()):
        color = COLORS[place % len(COLORS)]
        parts.append(_line(_steps(line, end_s), 16 + HEIGHT + GAP, most, end_s, color))
        y = 2 * HEIGHT + GAP + 50 + 20 * place
        parts.append(f'<rect x="{LEFT}" y="{y - 9}" width="18" height="4" fill="{color}"/>')
        parts.append(f'<text x="{LEFT + 26}" y="{y}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _steps(line: Sequence[tuple[float, int]], end_s: float) -> list[tuple[float, float]]:
    points: list[tuple[float, float]] = []
    for at_s, number in line:
        if points:
            points.append((at_s, points[-1][1]))
        points.append((at_s, number))
    return [*points, (end_s, points[-1][1])]


def _line(
    points: Sequence[tuple[float, float]], top: float, most: float, end_s: float, color: str
) -> str:
    places = " ".join(
        f"{LEFT + WIDTH * at_s / end_s:.1f},{top + HEIGHT * (1 - value / most):.1f}"
        for at_s, value in points
    )
    return f'<polyline points="{places}" fill="none" stroke="{color}" stroke-width="1.4"/>'


def _axes(top: float, name: str, most: float, end_s: float) -> list[str]:
    bottom = top + HEIGHT
    marks = [
        f'<text x="{LEFT + WIDTH * minute * 60 / end_s:.0f}" y="{bottom + 14:.0f}" '
        f'text-anchor="middle">{minute} min</text>'
        for minute in range(0, int(end_s // 60) + 1, 10)
    ]
    return [
        f'<path d="M{LEFT} {top}V{bottom}H{LEFT + WIDTH}" fill="none" stroke="#999"/>',
        f'<text x="{LEFT - 6}" y="{top + 8}" text-anchor="end">{most:.3g}</text>',
        f'<text x="{LEFT - 6}" y="{bottom}" text-anchor="end">0</text>',
        f'<text x="{LEFT + 8}" y="{top + 8}">{name}</text>',
        *marks,
    ]
