"""The set-ups of the story differ in one thing each, and the right two are the same training."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from cloison.samples import Sample  # noqa: E402
from cloison.segments import IGNORE  # noqa: E402
from cloison.story.configuration import CONFIGURATION, SETUPS, Run  # noqa: E402
from cloison.story.dialogs import Dialogs  # noqa: E402
from cloison.story.setups import batch_of, blocks_of, steps_of  # noqa: E402
from cloison.story.training import model_of, train  # noqa: E402

SMALL = replace(CONFIGURATION, functions=8, samples_per_block=4, samples_per_step=8, epochs=2, width=32, warmup_steps=2)


def made(functions: int = 8) -> Dialogs:
    """Samples of 5 to 17 tokens over 40 ids; prompts are context."""
    draw = np.random.default_rng(0)

    def sample() -> Sample:
        ids = draw.integers(1, 40, draw.integers(5, 18))
        labels = np.where(np.arange(ids.size) < draw.integers(2, 4), IGNORE, ids)
        return Sample(ids, labels)

    return Dialogs(
        tuple(tuple(sample() for _ in range(3)) for _ in range(functions)), tuple(sample() for _ in range(functions))
    )


@pytest.mark.parametrize("near", ["related", "unrelated"])
def test_every_epoch_trains_every_sample_once(near) -> None:
    dialogs = made()
    steps = list(steps_of(dialogs, Run("packed", near, 4, 0), SMALL))
    assert len(steps) == 2 * 3
    for epoch in (steps[:3], steps[3:]):
        ids = [id(sample) for step in epoch for sample in step]
        assert len(set(ids)) == len(ids) == 24
    places = {id(sample): number for number, group in enumerate(dialogs.trained) for sample in group}
    beside = [[places[id(sample)] for sample in step] for step in steps]
    together = sum(a == b for step in beside for a, b in pairwise(step))
    assert (together > 20) is (near == "related")


def test_each_wrong_set_up_has_one_fault() -> None:
    samples = made().everything[:8]
    right = batch_of("packed", samples, 4)
    lengths = [[len(sample) for sample in samples[:4]], [len(sample) for sample in samples[4:]]]
    starts, valid = (np.zeros(right["input_ids"].shape, bool) for _ in range(2))
    for row, segments in enumerate(lengths):
        starts[row, np.cumsum(segments[:-1])] = True
        valid[row, : sum(segments)] = True
    context = (right["labels"] == IGNORE).numpy()
    first = np.zeros_like(starts)
    first[:, 0] = True

    wanted = {
        "plain causal": {"position_ids"},
        "boundary targets": {"labels"},
        "prompts and padding": {"labels"},
    }
    for setup, differs in wanted.items():
        batch = batch_of(setup, samples, 4)
        assert batch.keys() == right.keys()
        found = {name for name in batch if not np.array_equal(batch[name], right[name])}
        assert found == differs, setup
    assert (batch_of("plain causal", samples, 4)["position_ids"] == torch.arange(valid.shape[1])).all()
    trained = (batch_of("boundary targets", samples, 4)["labels"] != IGNORE).numpy()
    assert np.array_equal(trained & context, starts)
    trained = (batch_of("prompts and padding", samples, 4)["labels"] != IGNORE).numpy()
    assert np.array_equal(trained, ~starts)
    assert not valid.all(), "there is padding to train"


def test_alone_is_a_row_a_sample() -> None:
    samples = made().everything[:8]
    assert [len(block) for block in blocks_of("alone", samples, 4)] == [1] * 8
    assert [len(block) for block in blocks_of("packed", samples, 4)] == [4, 4]
    assert batch_of("alone", samples, 4)["input_ids"].shape == (8, max(map(len, samples)))


def test_packed_trains_as_alone_and_watch_names_each_fault() -> None:
    dialogs = made()
    found = {setup: train(Run(setup, "unrelated", 4, 3), SMALL, dialogs) for setup in SETUPS}
    np.testing.assert_allclose(found["packed"].training_loss, found["alone"].training_loss, atol=2e-5)
    assert abs(found["packed"].answer_loss - found["alone"].answer_loss) < 2e-5
    assert found["packed"].held_out_loss == pytest.approx(found["alone"].held_out_loss, abs=2e-5)
    kinds = {
        setup: {finding["kind"] for finding in result.watched["findings"] if finding["severity"] == "error"}
        for setup, result in found.items()
    }
    assert kinds == {
        "alone": set(),
        "packed": set(),
        "plain causal": {"leak"},
        "boundary targets": {"boundary_target"},
        "prompts and padding": {"prompt_trained", "padding_trained"},
    }
    assert all(len(result.loss_by_place) == 4 for result in found.values())
    assert found["plain causal"].training_loss[0] != found["packed"].training_loss[0]


def test_watching_leaves_the_training_as_it_is(monkeypatch) -> None:
    """The same loop without a watch gives the same losses to the bit."""
    dialogs, run = made(), Run("plain causal", "related", 4, 1)
    watched = train(run, SMALL, dialogs).training_loss

    class Blind:
        report = type("Report", (), {"to_dict": staticmethod(dict)})

        def __enter__(self): ...
        def __exit__(self, *_): ...

    monkeypatch.setattr("cloison.proof.watch.watch", lambda *_, **__: Blind())
    assert train(run, SMALL, dialogs).training_loss == watched


def test_the_answer_loss_is_the_models_own_on_each_sample() -> None:
    from cloison.story.evaluation import answer_loss

    dialogs = made()
    model = model_of(SMALL, 0, dialogs.vocabulary).eval()
    total = count = 0.0
    with torch.no_grad():
        for sample in dialogs.everything:
            ids, labels = (torch.from_numpy(np.array(a, np.int64))[None] for a in (sample.input_ids, sample.labels))
            asked = int((labels[:, 1:] != IGNORE).sum())
            total += float(model(input_ids=ids, labels=labels).loss) * asked
            count += asked
    assert answer_loss(model, dialogs.everything) == pytest.approx(total / count, abs=1e-5)


def test_dialogs_survive_their_file(tmp_path: Path) -> None:
    dialogs = made()
    dialogs.save(tmp_path / "samples.json")
    assert Dialogs.load(tmp_path / "samples.json") == dialogs
