"""cloison verify: models by name, configuration and folder; signals; exit statuses; JSON."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from cloison.cli import main  # noqa: E402
from cloison.proof.tiny import tiny_model  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_type_that_is_exact_and_one_that_leaks(capsys):
    assert main(["verify", "llama"]) == 0
    shown = capsys.readouterr().out
    assert "0 of 56 cells moved" in shown and "targets" in shown
    assert main(["verify", "gpt_oss"]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "`model.layers.0.self_attn` (GptOssAttention, attention)" in shown
    assert "fix:" in shown and "masks_by_layer_type" in shown


def test_adapt_mends_it(capsys):
    assert main(["verify", "gpt_oss", "--adapt"]) == 0
    assert "adapted" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "status"),
    [
        (["--signal", "none"], 1),
        (["--signal", "positions-ones"], 1),
        (["--signal", "mask4d"], 0),
        (["--signal", "mask4d-bool"], 1),
        (["--signal", "mask4d-bool", "--attn", "sdpa"], 0),
        (["--signal", "flattening"], 0),
        (["--use-cache", "default"], 1),
        (["--use-cache", "on"], 1),
        (["--dtype", "bfloat16"], 0),
        (["--dtype", "float64"], 0),
    ],
)
def test_signals_and_exit_statuses(options, status, capsys):
    assert main(["verify", "llama", "--json", *options]) == status
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is (status == 0)
    assert {verdict["experiment"] for verdict in report["verdicts"]} >= {"isolation", "equality", "positions", "targets"}


def test_folder_with_weights_config_file_and_data(tmp_path, capsys):
    import cloison

    model, config = tiny_model("llama")
    model.save_pretrained(tmp_path / "model")
    assert main(["verify", str(tmp_path / "model")]) == 0
    assert "with the weights of model" in capsys.readouterr().out
    config.save_pretrained(tmp_path / "bare")
    assert main(["verify", str(tmp_path / "bare" / "config.json"), "--json"]) == 0
    assert "random weights" in json.loads(capsys.readouterr().out)["title"]

    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps({"input_ids": [4 + (7 * r + i) % 80 for i in range(3 + r)]}) + "\n" for r in range(9)))
    cloison.pack(source, tmp_path / "packed", cloison.PackSpec(32, append_eos="never"))
    assert main(["verify", str(tmp_path / "model"), "--data", str(tmp_path / "packed"), "--json"]) == 0
    blocks = json.loads(capsys.readouterr().out)["certificate"]["seq_lengths"]
    assert len(blocks) == 2 and all(sum(block) <= 32 for block in blocks)
    page = tmp_path / "page.html"
    assert main(["verify", "gpt_oss", "--html", str(page)]) == 1
    assert "GptOssAttention" in page.read_text()


@pytest.mark.parametrize("words", [["nonsense"], ["llama", "--attn", "no_such_attention"], ["llama", "--dtype", "int8"]])
def test_wrong_use(words, capsys):
    assert main(["verify", *words]) == 2
    assert capsys.readouterr().err.startswith("cloison verify: ")


def test_large_configurations_are_built_as_twins(tmp_path, capsys):
    large = {
        "model_type": "gpt_oss",
        "hidden_size": 256,
        "intermediate_size": 256,
        "num_hidden_layers": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": 1_500_000,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
        "sliding_window": 16,
        "pad_token_id": 1_400_000,
    }
    (tmp_path / "config.json").write_text(json.dumps(large))
    assert main(["verify", str(tmp_path), "--attn", "eager", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert "a twin of gpt_oss, random weights: 2 of 24 layers, 8,192 ids, real widths" in report["title"]


def test_a_name_that_is_no_model_tells_the_nearest_or_the_way(capsys):
    assert main(["verify", "lama"]) == 2
    assert "Is it llama?" in capsys.readouterr().err
    assert main(["verify", "owner/no-such-weights"]) == 2
    assert "Names of hubs are not looked up" in capsys.readouterr().err
