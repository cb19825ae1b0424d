"""The story from its samples to its page: small, whole, and able to go on; and what it says of damage is what was seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from cloison.errors import StoreError
from cloison.story.configuration import CONFIGURATION, SETUPS, Configuration, Run
from cloison.story.dialogs import dialogs
from cloison.story.running import run_all
from cloison.story.story import Story, runs_of, tell
from cloison.story.story_page import story_page
from cloison.story.telling import converged, effects, told_plainly, told_view, verdict_rows
from cloison.story.training import Result
from tests.story.test_setups import SMALL, made
from tests.terminal import shown

SEEDS = (0, 1)


def test_every_set_up_is_run_on_every_seed_and_neighbourhood() -> None:
    runs = runs_of(CONFIGURATION)
    assert len(set(runs)) == len(runs)
    grid = {(r.setup, r.neighbours, r.seed) for r in runs if r.samples_per_block == CONFIGURATION.samples_per_block}
    assert len(grid) == len(SETUPS) * len(CONFIGURATION.neighbours) * len(CONFIGURATION.seeds)
    sizes = {r.samples_per_block for r in runs if r.setup == "plain causal" and r.seed == CONFIGURATION.seeds[0]}
    assert sizes == set(CONFIGURATION.block_sizes)
    assert all(CONFIGURATION.samples_per_step % size == 0 for size in sizes), "every step has the same samples"


def test_the_whole_story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(SMALL, epochs=1, seeds=(0,), block_sizes=(2, 4), neighbours=("unrelated",))
    monkeypatch.setattr("cloison.story.story.dialogs", lambda _: made())
    seen: list[tuple[int, int]] = []
    story = tell(tmp_path, lambda _, done, total: seen.append((done, total)), small)
    assert seen[-1] == (6, 6) and len(story.results) == 6
    assert [r.run for r in story.results] == runs_of(small)
    assert {row[0]: row[1:] for row in verdict_rows(story)} == {
        "alone": ("as if alone", "as if alone"),
        "packed": ("as if alone", "as if alone"),
        "plain causal": ("leak", "leak"),
        "boundary targets": ("boundary_target", "boundary_target"),
        "prompts and padding": ("prompt_trained, padding_trained", "prompt_trained, padding_trained"),
    }
    page = story_page(story)
    for said in ("watch, in the first step of its training", "prompt_trained, padding_trained", "With unrelated neighbours"):
        assert said in page
    for width in (80, 120):
        text = shown(told_view(story, "story.html"), width)
        assert "…" not in text and max(map(len, text.splitlines())) <= width
    assert told_plainly(story)["verdicts"].keys() == SETUPS.keys()

    # a story that is told again trains nothing again; another configuration does
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.result")}
    assert len(before) == 6
    again = tell(tmp_path, lambda *_: None, small)
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.result")} == before
    assert again.results == story.results


def test_a_process_that_fails_is_named(tmp_path: Path) -> None:
    bad = replace(SMALL, heads=3)
    with pytest.raises(StoreError, match="every run of the story must end") as caught:
        run_all(tmp_path, [Run("packed", "related", 4, 0)], bad, made(), 1, lambda *_: None)
    assert "process-0.log" in caught.value.found and "Error" in caught.value.found


def test_dialogs_are_real_and_the_answer_is_what_is_trained() -> None:
    few = replace(CONFIGURATION, functions=5)
    from tokenizers import Tokenizer

    from cloison.story.dialogs import TOKENIZER

    found = dialogs(few, compact=False)
    tokenizer = Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
    assert len(found.trained) == len(found.held_out) == 5
    for group, held_out in zip(found.trained, found.held_out, strict=True):
        answers = {
            tokenizer.decode(sample.input_ids[sample.labels >= 0].tolist(), skip_special_tokens=True).strip()
            for sample in (*group, held_out)
        }
        assert len(answers) == 1 and len(answers.pop()) >= 20
        assert "Tell me about" in tokenizer.decode(held_out.input_ids.tolist())


def _story(losses: dict[str, list[float]], ends: dict[str, list[float]] | None = None) -> Story:
    configuration = Configuration(seeds=SEEDS, neighbours=("related",))
    results = tuple(
        Result(
            Run(setup, "related", 8, seed),
            [8.0, *[(ends or losses)[setup][seed]] * 20],
            1.0,
            0.5,
            losses[setup][seed],
            losses[setup][seed],
            [1.0] * 8,
            {"findings": []},
        )
        for setup in losses
        for seed in SEEDS
    )
    return Story(configuration, results, {}, 0.0)


def test_damage_is_said_only_where_it_was_seen() -> None:
    right = {"alone": [0.3, 0.4], "packed": [0.3, 0.4]}
    (said,) = effects(_story(right | {"plain causal": [1.0, 0.5]}), "related")
    assert said == (
        "plain causal: worse in evaluation on every seed (answers 0.50-1.00 where packed has 0.30-0.40, "
        "a held-out question 0.50-1.00 where packed has 0.30-0.40); the training loss is higher too."
    )
    (said,) = effects(_story(right | {"plain causal": [1.0, 0.39]}), "related")
    assert "no damage shows in evaluation" in said
    ends = {"alone": [0.3, 0.4], "packed": [0.3, 0.4], "plain causal": [0.2, 0.2]}
    (said,) = effects(_story(right | {"plain causal": [1.0, 0.5]}, ends), "related")
    assert said.endswith("; the training loss gives no warning.")


def test_a_seed_on_which_the_right_one_does_not_converge_is_left_out() -> None:
    story = _story({"alone": [0.3, 3.0], "packed": [0.3, 3.0], "plain causal": [1.0, 1.0]})
    assert [converged(r) for r in story.of("packed", "related")] == [True, False]
    first, second = effects(story, "related")
    assert first == "On seed 1 a right set-up did not converge either: damage cannot be read there."
    assert second.startswith("plain causal: worse in evaluation on every seed")


def test_the_page_opens_and_is_usable(tmp_path: Path) -> None:
    from cloison.proof.report import Verdict, VerifyReport
    from cloison.view.page import write_page
    from tests.view.pages import browser, opened, serious

    told = _story({"alone": [0.3, 0.4], "packed": [0.3, 0.4], "plain causal": [1.0, 0.5]})
    report = VerifyReport((Verdict("isolation", "exact", "0 of 2 cells moved"),))
    file = write_page(story_page(replace(told, reports=dict.fromkeys(("alone", "packed"), report))), tmp_path / "story.html")
    with browser() as chromium:
        for width, scheme in ((390, "dark"), (1440, "light")):
            with opened(chromium, file, width, scheme) as page:
                assert page.locator("polyline").count() == 3
                assert "worse in evaluation on every seed" in page.locator("main").inner_text()
                assert page.evaluate("document.documentElement.scrollWidth") <= width
                assert serious(page) == []
