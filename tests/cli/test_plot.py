"""The plot of losses: everything is in it, the newest point too, in any size."""

from __future__ import annotations

import pytest

from headrace.cli.plot import LABEL_WIDTH, MARK, MOST_POINTS, Trail, draw_plot


def test_a_trail_keeps_its_ends_in_bounded_memory() -> None:
    trail = Trail()
    for step in range(1, 10 * MOST_POINTS):
        trail.add(step, 1 / step)
    points = trail.points()
    assert points[0] == (1, 1.0)
    assert points[-1][0] == 10 * MOST_POINTS - 1
    assert MOST_POINTS / 2 <= len(points) <= MOST_POINTS + 1
    assert points == sorted(points)


@pytest.mark.parametrize(("width", "height"), [(80, 5), (74, 18), (30, 4)])
def test_a_plot_reaches_from_the_first_to_the_newest_point(width: int, height: int) -> None:
    curve = [(float(step), 1.0 + 3.0 / step) for step in range(1, 501)]
    lines = [line.plain for line in draw_plot(curve, [(250.0, 1.5), (500.0, 1.4)], width, height)]
    assert len(lines) == height
    assert max(map(len, lines)) == width
    assert "".join(lines).count(MARK) == 2
    assert any(line.endswith(MARK) for line in lines), "the newest evaluation is in the last column"
    assert lines[-1].split() == ["step", "1", "500"]
    unmarked = [line.plain for line in draw_plot(curve, [], width, height)]
    columns = {place for line in unmarked[:-1] for place, character in enumerate(line) if character > "⠀"}
    assert columns >= set(range(LABEL_WIDTH + 1 + width // 10, width)), "without a gap, up to the last column"


def test_the_steep_beginning_does_not_flatten_the_rest() -> None:
    curve = [(float(step), 10.0 if step < 4 else 2.0 - step / 1000) for step in range(1, 201)]
    top = draw_plot(curve, [], 60, 8)[0].plain.split()[0]
    assert float(top) < 2.1


@pytest.mark.parametrize("losses", [[2.0], [2.0, 2.0, 2.0]])
def test_a_flat_or_single_point_is_drawn(losses: list[float]) -> None:
    curve = [(float(step), loss) for step, loss in enumerate(losses, 1)]
    assert any(character > "⠀" for line in draw_plot(curve, [], 40, 6)[:-1] for character in line.plain)
