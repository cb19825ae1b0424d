"""The geometry of charts: nothing lost, nothing outside the frame."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cloison.view.charts import bars, strips, trace


@given(st.lists(st.integers(1, 200_000), min_size=1, max_size=200))
def test_every_value_is_in_one_bar(values: list[int]) -> None:
    chart = bars(values, "tokens", "said")
    counted = sum(int(bar["said"].rsplit(": ", 1)[1].replace(",", "")) for bar in chart["bars"])
    assert counted == len(values)
    assert all(0 <= bar["y"] <= chart["height"] and bar["x"] >= 0 for bar in chart["bars"])
    assert max(bar["height"] for bar in chart["bars"]) == chart["height"]


def test_no_values_is_no_crash() -> None:
    assert bars([], "tokens", "said")["bars"]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_strips_keep_proportions(lengths: list[int]) -> None:
    capacity = sum(lengths) + 7
    chart = strips([("0", lengths)], capacity, "said")
    widths = np.array([cell["width"] for cell in chart["rows"][0]["cells"]])
    np.testing.assert_allclose(widths, np.array(lengths) * chart["inner"] / capacity, atol=0.02)
    assert chart["rows"][0]["walls"][-1] <= 50 + chart["inner"]
    assert f"{sum(lengths):,} of {capacity:,} tokens" in chart["rows"][0]["said"]


def test_trace_draws_its_reference_in_the_frame() -> None:
    chart = trace([1.0, 3.0], "step", "said", reference=2.0)
    assert 0 < chart["reference"] < chart["height"]
    assert chart["points"].count(",") == 2


def test_lines_share_a_logarithmic_scale() -> None:
    from cloison.view.charts import lines

    drawn = lines({"one": [10.0, 1.0, 0.1], "two": [1.0, 1.0, 1.0]}, "step", "said", height=200)
    assert [level["text"] for level in drawn["levels"]] == ["0.1", "1", "10"]
    assert [level["y"] for level in drawn["levels"]] == [200, 100, 0]
    points = {line["name"]: line["points"].split() for line in drawn["lines"]}
    assert points["one"] == ["50.0,0.0", "385.0,100.0", "720.0,200.0"]
    assert [point.split(",")[1] for point in points["two"]] == ["100.0"] * 3
    assert lines({}, "step", "nothing")["lines"] == []
