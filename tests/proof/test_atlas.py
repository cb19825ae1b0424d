"""The atlas says what an experiment says now: a spread of types, every attention and signal, against docs/atlas.csv."""

from __future__ import annotations

import csv
from dataclasses import astuple
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from cloison.proof.atlas import ATTENTIONS, CASES, COLUMNS, Row, entries, measure, write
from cloison.proof.tiny import causal_types

pytestmark = pytest.mark.filterwarnings("ignore")

ATLAS = Path(__file__).parents[2] / "docs" / "atlas.csv"

SPREAD = (
    "llama", "gpt_oss", "gpt2", "gpt_neo", "opt", "bloom", "mpt", "falcon", "roberta", "bart", "mistral", "mixtral",
    "qwen3_moe", "olmoe", "gemma3_text", "cohere2", "llama4_text", "phi3", "deepseek_v3", "deepseek_v32", "jamba", "mamba",
    "bamba", "lfm2", "recurrent_gemma", "rwkv", "qwen3_next", "minimax", "afmoe", "xlnet", "llama+dynamic", "phi3+longrope",
    "qwen3+window",
)  # fmt: skip


@pytest.fixture(scope="module")
def lines():
    with ATLAS.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", SPREAD)
def test_atlas_is_what_is_measured(lines, name):
    model_type, changes = entries()[name]
    told = {tuple(line[column] for column in COLUMNS[:4]): (line["verdict"], line["place"]) for line in lines}
    measured = {astuple(row)[:4]: (row.verdict, row.place) for row in measure(name, model_type, changes)}
    assert len(measured) == len(ATTENTIONS) * len(CASES)
    assert measured == {key: told[key] for key in measured}


def test_every_type_is_in_the_atlas_or_the_atlas_says_why_not(lines):
    assert list(lines[0])[: len(COLUMNS)] == list(COLUMNS)
    by_type = {line["model_type"]: line for line in lines}
    for name, reason in causal_types().items():
        assert name in by_type
        assert (by_type[name]["detail"] == f"not built: {reason}") is bool(reason)
    assert {line["verdict"] for line in lines} == {"exact", "leak", "mismatch", "error"}
    assert len({line["model_type"] for line in lines if line["attention"] and "not built" not in line["detail"]}) >= 186


def test_columns_of_others_are_kept(tmp_path):
    path = tmp_path / "atlas.csv"
    path.write_text(",".join(COLUMNS) + ",adapted\nllama,eager,none,off,leak,here,much,a way\n")
    rows = [Row("llama", "eager", "none", "off", "exact"), Row("opt", "eager", "none", "off", "leak")]
    write(path, rows)
    assert path.read_text().splitlines()[1:] == ["llama,eager,none,off,exact,,,a way", "opt,eager,none,off,leak,,,"]
