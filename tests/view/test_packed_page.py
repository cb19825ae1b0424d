"""The page of a packed data set: its numbers are those of the manifest, it stays small, and says what changed or is missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cloison
from cloison.errors import InputError
from cloison.view.packed_page import packed_page
from cloison.view.page import write_page
from tests.view.pages import browser, opened, serious

TOKENIZER = Path(cloison.__file__).parent / "story" / "tokenizer" / "tokenizer.json"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as found:
        yield found


def made(folder: Path, samples: int, capacity: int, median: int) -> cloison.Packed:
    """A packed data set of random ids, of lognormal lengths."""
    draw = np.random.default_rng(0)
    lengths = np.clip(draw.lognormal(np.log(median), 0.9, samples).astype(int), 1, capacity)
    ids = draw.integers(10, 4000, lengths.sum(), dtype=np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    pq.write_table(pa.table({"input_ids": pa.ListArray.from_arrays(offsets, ids)}), folder / "in.parquet")
    return cloison.pack(str(folder / "in.parquet"), str(folder / "packed"), cloison.PackSpec(capacity=capacity))


@pytest.fixture(scope="module")
def backend() -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(TOKENIZER))


def test_the_numbers_are_the_manifests(tmp_path: Path, chromium: Any, backend: Any) -> None:
    packed = made(tmp_path, 400, 1024, 120)
    file = write_page(packed_page(packed, backend), tmp_path / "page.html")
    assert file.stat().st_size < 1_000_000
    with opened(chromium, file) as page:
        numbers = page.locator("dl.numbers").inner_text()
        assert f"{packed.manifest.num_tokens:,}" in numbers
        assert f"{100 * packed.manifest.utilization:.2f} %" in numbers
        assert "no token lost" in numbers
        assert page.locator("#overview svg").count() >= 2
        assert page.locator("#block-title").inner_text().startswith("Block 0:")
        assert serious(page) == []


@pytest.mark.slow
def test_a_thousand_blocks_of_4096_stay_small(tmp_path: Path, chromium: Any, backend: Any) -> None:
    packed = made(tmp_path, 9_000, 4096, 330)
    assert len(packed) > 1000
    file = write_page(packed_page(packed, backend, asked=[len(packed) - 1]), tmp_path / "page.html")
    assert file.stat().st_size < 5_000_000
    with opened(chromium, file) as page:
        said = page.locator("#blocks").inner_text()
        assert f"of {len(packed):,} blocks are on this page with their text" in said and "--block N" in said
        page.get_by_role("spinbutton", name="Block").fill(str(len(packed) - 1))
        page.get_by_role("spinbutton", name="Block").press("Enter")
        assert page.locator("#block-title").inner_text().startswith(f"Block {len(packed) - 1}:")


def test_a_data_set_that_changed_says_so(tmp_path: Path) -> None:
    packed = made(tmp_path, 50, 256, 60)
    assert "changed since it was packed" not in packed_page(packed, None)
    shard = packed.path / packed.manifest.shards[0].name
    whole = bytearray(shard.read_bytes())
    whole[len(whole) // 2] ^= 1
    shard.write_bytes(whole)
    from cloison.view.overview import stale_notice

    assert "changed since it was packed" in stale_notice(cloison.open(packed.path))


def test_without_a_tokenizer_ids_are_shown_and_said(tmp_path: Path) -> None:
    html = packed_page(made(tmp_path, 20, 256, 60), None)
    assert "so token ids are shown in place of text" in html
    assert "⟨" in html


def test_a_file_that_exists_is_kept(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("mine")
    with pytest.raises(InputError, match=r"The file exists\."):
        write_page("<p>", tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == "mine"
    assert write_page("<p>", tmp_path / "page.html", replace=True).read_text() == "<p>"
