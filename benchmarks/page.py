"""How long the page of a large data set takes to open in a real headless browser, beside an empty page in the same run.

Packs random ids of lognormal lengths into at least 1,000 blocks of 4,096 tokens, writes the page as `cloison show DIR --html
FILE` does, and opens it from disk in Chromium: from the call to the first block drawn and the layout done. Prints size,
time, and the same for a jump to another block. The bounds: under 3 s and under 5 MB.
Run it alone: ``python benchmarks/page.py [BLOCKS]``; it needs playwright and a Chromium (or CLOISON_BROWSER).
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer

import cloison
from cloison.view.packed_page import packed_page
from cloison.view.page import write_page

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.view.pages import browser

CAPACITY = 4096
TOKENIZER = Path(cloison.__file__).parent / "story" / "tokenizer" / "tokenizer.json"
DRAWN = "() => document.querySelectorAll('#tokens span').length > 0 && document.body.getBoundingClientRect().height > 0"
EMPTY = "<!doctype html><meta charset=utf-8><title>empty</title><p>nothing"


def packed_of(folder: Path, blocks: int) -> cloison.Packed:
    """Pack at least ``blocks`` blocks of random ids."""
    draw = np.random.default_rng(0)
    lengths = np.clip(draw.lognormal(np.log(330), 0.9, 9 * blocks).astype(int), 1, CAPACITY)
    ids = draw.integers(10, 4000, lengths.sum(), dtype=np.int32)
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    pq.write_table(pa.table({"input_ids": pa.ListArray.from_arrays(ends, ids)}), folder / "ids.parquet")
    return cloison.pack(str(folder / "ids.parquet"), str(folder / "packed"), cloison.PackSpec(CAPACITY))


def times(work: Callable[[], Any], repeat: int = 5) -> list[float]:
    """Return the sorted times of ``repeat`` calls in seconds."""
    out = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        out.append(time.perf_counter() - start)
    return sorted(out)


def opening(chromium: Any, file: Path, ready: str | None) -> Callable[[], None]:
    """Return what opens ``file`` in a tab of its own and waits until it is ``ready``."""

    def work() -> None:
        tab = chromium.new_page(viewport={"width": 1440, "height": 900})
        tab.goto(file.as_uri(), wait_until="load")
        if ready:
            tab.wait_for_function(ready)
        tab.close()

    return work


def main(blocks: int) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as scratch, browser() as chromium:
        folder = Path(scratch)
        packed = packed_of(folder, blocks)
        (made,) = times(
            lambda: write_page(packed_page(packed, Tokenizer.from_file(str(TOKENIZER))), folder / "page.html"), repeat=1
        )
        page = folder / "page.html"
        (folder / "empty.html").write_text(EMPTY)
        empty = times(opening(chromium, folder / "empty.html", None))
        full = times(opening(chromium, page, DRAWN))
        tab = chromium.new_page()
        tab.goto(page.as_uri())
        jumps = times(lambda: tab.click("#next"))
        size = page.stat().st_size / 1e6
        said = tab.locator("#blocks .sub").first.inner_text()
    print(
        f"{len(packed):,} blocks of {CAPACITY:,}, {packed.manifest.num_tokens:,} tokens; page made in {made:.1f} s (with check)"
    )
    print(f"size                {size:.2f} MB of 5 allowed; {said}")
    print(f"opened and drawn    {full[2]:.2f} s in the middle of 5, {full[-1]:.2f} at most, of 3 allowed")
    print(f"an empty page       {empty[2]:.2f} s: {full[2] / empty[2]:.1f} times that")
    print(f"the next block      {jumps[2]:.3f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
