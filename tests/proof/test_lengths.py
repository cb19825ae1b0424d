"""Leaks that begin late: verify makes its blocks longer than the model's own limits, and says how long."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers

from cloison import verify
from cloison.proof.blocks import LONGEST_TOKENS, USUAL_TOKENS, lengths_of, synthetic
from cloison.proof.limits import affordable_tokens, limits
from cloison.proof.tiny import tiny_model
from tests.proof.toy import Attention, flat, make, own

WINDOW = 96


def _late(window: int) -> Any:
    """A mask that is right in short rows; longer ones go another way, which knows the window and no samples."""

    def mask(segment_ids: Any, positions: Any) -> Any:
        width = segment_ids.shape[1]
        if width <= window:
            return own(segment_ids, positions)
        distance = torch.arange(width)[:, None] - torch.arange(width)
        return ((distance >= 0) & (distance < window)).expand(len(segment_ids), -1, -1)

    return mask


def _far(window: int) -> Any:
    """A mask that is right within ``window`` tokens; what lies farther back than that is open, whosever it is."""

    def mask(segment_ids: Any, positions: Any) -> Any:
        distance = torch.arange(segment_ids.shape[1])[:, None] - torch.arange(segment_ids.shape[1])
        return own(segment_ids, positions) | (distance > window)

    return mask


class Windowed(Attention):
    """Attention that holds its window where a model without a configuration does."""

    def __init__(self, mask: Any, window: int = WINDOW) -> None:
        super().__init__(mask)
        self.sliding_window = window


def _mistral(window: int, attention: Any = None) -> Any:
    model, _ = tiny_model("mistral", sliding_window=window)
    if attention is not None:
        transformers.AttentionInterface.register("late_window", attention)
        transformers.AttentionMaskInterface.register("late_window", transformers.masking_utils.eager_mask)
        model.config._attn_implementation = "late_window"
    return model


def _row_window(module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float, **_: Any) -> Any:
    """Attention as eager has it; beyond the window it builds a mask of its own, over the row."""
    width = query.shape[2]
    if width > WINDOW:
        distance = torch.arange(width)[:, None] - torch.arange(width)
        mask = torch.zeros(1, 1, width, width, dtype=query.dtype)
        mask = mask.masked_fill((distance < 0) | (distance >= WINDOW), torch.finfo(query.dtype).min)
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(2, 3) * scaling + (0 if mask is None else mask[..., : key.shape[2]])
    return (scores.softmax(-1, dtype=torch.float32).to(query.dtype) @ value).transpose(1, 2).contiguous(), None


def test_a_leak_beyond_the_window_of_the_configuration_is_found() -> None:
    """With blocks of 71 tokens nothing is to be seen: the leak is there in rows longer than the window of 96 only."""
    faulty = _mistral(WINDOW, _row_window)
    short = synthetic(faulty.config, short=True)
    assert sum(lengths_of(short)) == 71 and verify(faulty, short).ok
    report = verify(faulty)
    assert [finding.kind for finding in report.findings] == ["leak"], str(report)
    assert report["where"].evidence["nature"] == "attention"
    assert report.measured_on == "8 samples of 1 to 195 tokens, 327 in all" and report.measured_on in str(report)
    assert report.certificate["not_reached"] == {}
    right = verify(_mistral(WINDOW))
    assert right.ok and right.measured_on == report.measured_on


@pytest.mark.parametrize("mask", [_late, _far])
def test_a_leak_beyond_the_window_of_a_module_is_found(mask: Any) -> None:
    """A model without a configuration: its modules' attributes say where its window ends."""
    faulty = make(attention=lambda: Windowed(mask(WINDOW)))
    assert verify(faulty, synthetic(None), collate=flat).ok
    report = verify(faulty, collate=flat, fix=False)
    assert [finding.kind for finding in report.findings] == ["leak"], str(report)
    assert max(lengths_of(synthetic(None, vocab_size=64, module=faulty))) == 195
    assert verify(make(attention=lambda: Windowed(own)), collate=flat).ok


def test_a_leak_that_nothing_announces_is_found_up_to_the_usual_tile() -> None:
    """Kernels work in tiles of 128 tokens: rows go beyond that, whatever a configuration says."""
    faulty = make(attention=lambda: Attention(_late(128)))
    assert verify(faulty, synthetic(None), collate=flat).ok
    report = verify(faulty, collate=flat, fix=False)
    assert [finding.kind for finding in report.findings] == ["leak"]
    assert report.measured_on == f"8 samples of 1 to {USUAL_TOKENS} tokens, 181 in all"


def test_what_lies_beyond_what_is_affordable_is_said() -> None:
    report = verify(_mistral(1 << 20))
    assert report.ok
    assert report.measured_on.endswith("none is longer than sliding_window=1,048,576: what begins there was not seen")
    assert report.certificate["not_reached"] == {"sliding_window": 1 << 20}
    assert any(entry.startswith("sliding_window=1048576") for entry in report.certificate["not_tested"])


def test_blocks_are_as_long_as_limits_ask_and_work_allows() -> None:
    model, config = tiny_model("mistral", sliding_window=515, max_position_embeddings=4096)
    long = lengths_of(synthetic(config, module=model))
    assert max(long) == 1033 and sorted(long)[-2] == 520  # two samples are longer than the window
    assert max(lengths_of(synthetic(config))) == 29  # without the model there is no knowing what it costs
    wide = transformers.MistralConfig(
        hidden_size=2048, intermediate_size=8192, num_hidden_layers=4, vocab_size=128_000, sliding_window=700
    )
    with torch.device("meta"):
        large = transformers.MistralForCausalLM(wide)
    assert affordable_tokens(large) < 71 < affordable_tokens(model)
    assert lengths_of(synthetic(wide, module=large)) == lengths_of(synthetic(None))
    assert max(lengths_of(synthetic(transformers.MistralConfig(sliding_window=400)))) == LONGEST_TOKENS


def test_a_table_of_positions_that_nothing_states_is_no_fault() -> None:
    """Longer blocks than the table has positions make a set-up raise: the short ones are taken then, and that is said."""
    report = verify(make(table=True), collate=flat)
    assert report.ok, str(report)
    assert report.measured_on == "8 samples of 1 to 29 tokens, 71 in all"


@pytest.mark.parametrize(
    ("config", "found"),
    [
        (transformers.GptOssConfig(), {"sliding_window": 128, "original_max_position_embeddings": 4096}),
        (transformers.Llama4TextConfig(), {"attention_chunk_size": 8192}),
        (transformers.ModernBertDecoderConfig(), {"local_attention": 128, "sliding_window": 64}),
        (transformers.Qwen2Config(), {}),  # max_window_layers are layers
        (transformers.Mamba2Config(), {"conv_kernel": 4, "chunk_size": 256}),
        (transformers.ReformerConfig(), {"local_attn_chunk_length": 64, "lsh_attn_chunk_length": 64}),
        (transformers.RecurrentGemmaConfig(), {"attention_window_size": 2048, "conv1d_width": 4}),
        (transformers.Gemma3Config(text_config={"sliding_window": 77}), {"sliding_window": 77}),
        (None, {}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_limits_are_read_from_configurations(config: Any, found: dict[str, int]) -> None:
    assert limits(config) == found


def test_lengths_are_the_same_for_a_seed_and_other_tokens_for_another() -> None:
    model, config = tiny_model("mistral", sliding_window=WINDOW)
    first, second = (synthetic(config, seed=seed, module=model) for seed in (0, 1))
    assert lengths_of(first) == lengths_of(second)
    assert not np.array_equal(first[1].input_ids, second[1].input_ids)
