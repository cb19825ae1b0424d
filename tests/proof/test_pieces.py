"""Rows a few at a time say what all at once say; an audit makes no logits that it does not read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from cloison.proof import pieces as of  # noqa: E402
from cloison.proof import substitution  # noqa: E402
from cloison.proof.comparing import gap, last_place  # noqa: E402
from cloison.proof.pieces import deviation, gaps, pieces  # noqa: E402
from cloison.proof.targets import read_targets  # noqa: E402
from cloison.proof.tiny import tiny_model  # noqa: E402


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if the vocabulary were so large that one row fills a piece, and three rows of noise are all there are."""
    monkeypatch.setattr(of, "_CELLS", {"cpu": 1, "other": 1})
    monkeypatch.setattr(substitution, "DRAWN", 300)
    yield


def numbers(rows: int = 7, width: int = 5, dtype: Any = torch.float32) -> Any:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(rows), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_gaps_are_the_largest_differences(small: None, dtype: Any) -> None:
    first, second = numbers(dtype=dtype), numbers(dtype=dtype)
    second[2, 3] += 1
    second[5, 0], first[6, 1] = float("nan"), float("inf")
    first[1, 1] = second[1, 1] = float("inf")
    found = gaps(first, second).tolist()
    assert found[0] == found[1] == found[3] == found[4] == 0.0
    assert found[2] > 0.5
    assert found[2] == pytest.approx(abs(float(first[2, 3].double() - second[2, 3].double())), rel=1e-6)
    assert found[5] > 1e300 and found[6] > 1e300
    assert gap(first[2:3], second[2:3]) == found[2]


def test_the_last_bit_is_a_gap() -> None:
    first = numbers(3, 4)
    second = first.clone()
    second[1, 2] = torch.nextafter(second[1, 2], torch.tensor(9.0))
    assert (gaps(first, second) > 0).tolist() == [False, True, False]
    assert gap(torch.tensor(1.0), torch.tensor(1.5)) == 0.5, "a parameter of one number"
    assert gap(torch.zeros(0), torch.zeros(0)) == 0.0


def test_deviation_and_last_place_leave_out_what_is_not_finite(small: None) -> None:
    values = numbers(9, 6)
    values[4, 2], values[8, 0] = float("inf"), float("nan")
    finite = values[torch.isfinite(values)]
    assert deviation(values) == pytest.approx(float(finite.double().std()), rel=1e-12)
    assert deviation(values[:, 0][:4]) == pytest.approx(float(values[:4, 0].double().std()), rel=1e-12)
    assert last_place(values) == float(finite.abs().max()) * torch.finfo(torch.float32).eps
    assert deviation(torch.zeros(1, 1)) == deviation(torch.full((9, 6), 0.1)) == deviation(torch.full((3, 2), np.inf)) == 0.0
    shifted = numbers(9, 6, torch.float64) * 1e-6 + torch.arange(9)[:, None] * 1e3
    assert deviation(shifted) == pytest.approx(float(shifted.std()), rel=1e-12)


def test_pieces_are_all_rows_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of, "_CELLS", {"cpu": 12, "other": 12})
    rows = torch.arange(10)
    assert [len(part) for part in pieces(rows, 4)] == [3, 3, 3, 1]
    assert [len(part) for part in pieces(rows, 4, at_once=2)] == [6, 4]
    assert torch.equal(torch.cat(pieces(rows, 100)), rows)


def batch() -> dict[str, Any]:
    ids = torch.from_numpy(np.random.default_rng(0).integers(4, 96, (2, 40)))
    return {"input_ids": ids, "labels": torch.where(ids % 3 == 0, -100, ids), "use_cache": False}


def smoothed(output: Any, asked: Any) -> Any:
    logits, labels = output.logits[:, :-1].flatten(0, 1), asked["labels"][:, 1:].flatten()
    return torch.nn.functional.cross_entropy(logits, labels, label_smoothing=0.1)


@pytest.mark.parametrize("loss", [None, smoothed])
@pytest.mark.parametrize("name", ["llama", "gemma2", "cohere"])  # gemma2 caps its logits, cohere scales them
def test_a_reading_in_pieces_is_the_reading(name: str, loss: Any, request: pytest.FixtureRequest) -> None:
    model, _ = tiny_model(name)
    whole = read_targets(model, batch(), loss)
    request.getfixturevalue("small")
    parts = read_targets(model, batch(), loss)
    assert np.array_equal(whole.tokens, parts.tokens) and whole.num_targets > 20
    assert np.allclose(whole.weights, parts.weights, rtol=1e-6, atol=0)
    assert whole.shape.name == parts.shape.name == ("cross entropy" if loss is None else "label smoothing")
    assert whole.shape.smoothing == pytest.approx(parts.shape.smoothing, abs=1e-4)


def test_the_head_runs_on_one_token_of_a_row() -> None:
    model, _ = tiny_model("llama")
    seen: list[Any] = []
    model.lm_head.register_forward_hook(lambda _, args, __: seen.append(tuple(args[0].shape[:2])))
    assert read_targets(model, batch()).num_targets > 20
    assert seen and set(seen) == {(2, 1)}


def test_a_head_that_gives_something_else_runs_whole() -> None:
    """What cannot be widened from one token is made of all: a head that gives two things beside each other."""
    model, _ = tiny_model("llama")
    expected = read_targets(model, batch())
    seen: list[Any] = []

    class Pair(torch.nn.Module):
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner, self.weight = inner, inner.weight

        def forward(self, hidden: Any) -> Any:
            seen.append(hidden.shape[1])
            return self.inner(hidden).unbind(0)

    class Stacked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.lm_head, self.config = model.model, Pair(model.lm_head), model.config
            self.base_model = model.model

        def get_output_embeddings(self) -> Any:
            return self.lm_head

        def forward(self, input_ids: Any, labels: Any, use_cache: bool) -> Any:
            logits = torch.stack(self.lm_head(self.model(input_ids, use_cache=use_cache).last_hidden_state))
            return {"loss": plain(logits, labels), "logits": logits}

    found = read_targets(Stacked(), batch())
    assert np.array_equal(found.tokens, expected.tokens)
    assert set(seen) == {1, 40}


def plain(logits: Any, labels: Any) -> Any:
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
