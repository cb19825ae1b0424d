"""Batches for Hugging Face models: what real models and transformers' own collator make of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cloison
from cloison.blocks import Block
from cloison.errors import BoundaryError, InputError
from cloison.forms import hf
from cloison.segments import Segments
from tests.forms.forms_reference import a_block, mask_options, samples_of, segments

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

BLOCKS = [a_block([7, 11, 1], 24, seed=1), a_block([5], 24, seed=2), a_block([2, 9, 3], 24, seed=3)]


def _llama(**changes: Any) -> Any:
    config = transformers.LlamaConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        **{"max_position_embeddings": 64, **changes},
    )
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).eval()


def _alone(model: Any, blocks: list[Block]) -> list[Any]:
    with torch.no_grad():
        return [
            model(input_ids=torch.tensor(sample.input_ids[None].astype(np.int64)), use_cache=False).logits[0]
            for sample in samples_of(blocks)
        ]


def _largest_difference(packed: Any, alone: list[Any], seg: Segments) -> float:
    """The largest difference over the valid tokens, in standard deviations of the logits."""
    valid = torch.tensor(seg.segment_ids() > 0)
    wanted = torch.cat(alone)
    return float((packed[valid] - wanted).abs().max() / wanted.std())


# ---------------------------------------------------------------------- the flat form


@pytest.mark.parametrize("kernel", [None, "mask", "flash"])
def test_a_llama_gives_each_segment_of_a_flat_row_what_it_gives_it_alone(kernel: str | None) -> None:
    model = _llama()
    with torch.no_grad():
        packed = model(**cloison.collate(BLOCKS, kernel=kernel)).logits
    flat = Segments.from_lengths([np.concatenate([block.segments.seq_lengths for block in BLOCKS])])
    assert _largest_difference(packed, _alone(model, BLOCKS), flat) < 1e-5


def test_the_detector_sees_a_plain_causal_row() -> None:
    model = _llama()
    batch = cloison.collate(BLOCKS)
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    with torch.no_grad():
        packed = model(**batch).logits
    flat = Segments.from_lengths([np.concatenate([block.segments.seq_lengths for block in BLOCKS])])
    assert _largest_difference(packed, _alone(model, BLOCKS), flat) > 1e-2


def test_the_loss_is_that_of_the_samples_alone() -> None:
    model = _llama()
    with torch.no_grad():
        packed = model(**cloison.collate(BLOCKS)).loss
        sums, count = 0.0, 0
        for sample in samples_of(BLOCKS):
            ids, labels = (torch.tensor(x[None].astype(np.int64)) for x in (sample.input_ids, sample.labels))
            if sample.num_targets:
                sums += float(model(input_ids=ids, labels=labels, use_cache=False).loss) * sample.num_targets
                count += sample.num_targets
    assert float(packed) == pytest.approx(sums / count, rel=1e-6)


def test_the_same_tensors_as_the_flattening_collator_of_transformers() -> None:
    theirs = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)(
        [{"input_ids": s.input_ids.tolist(), "labels": s.labels.tolist()} for s in samples_of(BLOCKS)]
    )
    ours = cloison.collate(BLOCKS, kernel=("flash", "mamba"))
    assert set(ours) == {*theirs, "use_cache"}
    assert ours["use_cache"] is False
    for name, value in theirs.items():
        assert type(ours[name]) is type(value), name
        if torch.is_tensor(value):
            assert ours[name].dtype == value.dtype, name
            assert torch.equal(ours[name], value), name
        else:
            assert ours[name] == value, name


def test_nothing_is_added_unasked_and_no_mask_is_all_ones() -> None:
    assert set(cloison.collate(BLOCKS)) == {"input_ids", "labels", "position_ids", "use_cache"}
    for name in hf.KERNELS:
        batch = cloison.collate(BLOCKS, kernel=name)
        assert ("attention_mask" in batch) == (name in ("mask", "flex"))
        assert name != "mask" or batch["attention_mask"].shape == (1, 1, 38, 38)
    assert cloison.collate(BLOCKS, kernel="mask", mask_dtype=torch.bfloat16)["attention_mask"].dtype == torch.bfloat16
    with pytest.raises(InputError, match="one attention_mask"):
        cloison.collate(BLOCKS, kernel=("mask", "flex"))


@pytest.mark.slow
def test_flex_attention_of_transformers_takes_the_block_mask() -> None:
    model = _llama(attn_implementation="flex_attention")
    with torch.no_grad():
        packed = model(**hf.rows(BLOCKS, kernel="flex")).logits
    seg = Segments.from_lengths([block.segments.seq_lengths for block in BLOCKS], 24)
    assert _largest_difference(packed, _alone(_llama(), BLOCKS), seg) < 1e-5


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=3), st.integers(1, 16))
def test_padding_is_one_more_segment_of_every_array(rows: list[list[int]], multiple: int) -> None:
    blocks = [a_block(row, seed=index) for index, row in enumerate(rows)]
    batch = cloison.collate(blocks, kernel=("flash", "seq_idx"), pad_to_multiple_of=multiple, pad_id=3)
    tokens = sum(map(sum, rows))
    width = batch["input_ids"].shape[1]
    assert width % multiple == 0
    assert 0 <= width - tokens < multiple
    seg = Segments.from_lengths([sum(rows, [])], width)  # noqa: RUF017
    assert batch["position_ids"].numpy().tolist() == seg.position_ids().tolist()
    assert Segments.from_position_ids(batch["position_ids"].numpy()).cu_seqlens().tolist() == batch["cu_seq_lens_q"].tolist()
    assert (batch["labels"][0, tokens:] == -100).all()
    assert (batch["input_ids"][0, tokens:] == 3).all()
    assert batch["input_ids"][0, :tokens].tolist() == np.concatenate([b.input_ids for b in blocks]).tolist()
    assert batch["cu_seq_lens_q"].tolist() == seg.cu_seqlens(covering=True).tolist()
    assert batch["max_length_q"] == int(batch["cu_seq_lens_q"].diff().max())


# ---------------------------------------------------------------------- rows


@pytest.mark.parametrize("kernel", [None, "mask"])
def test_padded_rows_give_each_segment_what_it_gets_alone(kernel: str | None) -> None:
    model = _llama()
    batch = hf.rows(BLOCKS, kernel=kernel)
    assert batch["input_ids"].shape == (3, 24)
    with torch.no_grad():
        packed = model(**batch).logits
    assert torch.isfinite(packed).all()
    seg = Segments.from_lengths([block.segments.seq_lengths for block in BLOCKS], 24)
    assert _largest_difference(packed, _alone(model, BLOCKS), seg) < 1e-5


def test_rows_have_fixed_shapes_with_a_static_number_of_segments() -> None:
    shapes = set()
    for block in BLOCKS:
        batch = hf.rows(block, kernel=("flash", "mamba"), static=6)
        assert batch["max_length_q"] == 24
        shapes.add(tuple((name, tuple(value.shape)) for name, value in batch.items() if torch.is_tensor(value)))
    assert len(shapes) == 1


def test_rows_refuse_a_block_over_capacity() -> None:
    with pytest.raises(BoundaryError, match="at most 16 tokens"):
        hf.rows(BLOCKS, 16)


# ---------------------------------------------------------------------- masks


@settings(max_examples=40, deadline=None)
@given(st.data(), segments())
def test_the_additive_mask_is_the_dense_mask(data: st.DataObject, seg: Segments) -> None:
    options = data.draw(mask_options(seg.num_segments))
    for dtype in (torch.float32, torch.bfloat16):
        found = hf.mask4d(seg, dtype, **options)
        assert found.dtype == dtype
        assert np.array_equal((found == 0).numpy(), seg.dense_mask(**options))
        assert set(found.unique().tolist()) <= {0.0, torch.finfo(dtype).min}
        assert (found == 0).any(-1).all()


@pytest.mark.parametrize("attn", ["eager", "sdpa"])
def test_a_mask_for_each_layer_type_keeps_the_windows_of_gemma(attn: str) -> None:
    config = transformers.Gemma3TextConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        sliding_window=4,
        layer_types=["sliding_attention", "full_attention"],
        attn_implementation=attn,
    )
    assert set(config.layer_types) == {"sliding_attention", "full_attention"}
    torch.manual_seed(0)
    model = transformers.Gemma3ForCausalLM(config).eval()
    batch = hf.rows(BLOCKS)
    seg = Segments.from_lengths([block.segments.seq_lengths for block in BLOCKS], 24)
    alone = _alone(model, BLOCKS)
    with torch.no_grad():
        right = model(**batch, attention_mask=hf.masks_by_layer_type(seg, config)).logits
        windowless = model(**batch, attention_mask=hf.mask4d(seg)).logits
    assert _largest_difference(right, alone, seg) < 1e-5
    assert _largest_difference(windowless, alone, seg) > 1e-3


def test_layer_types_that_are_not_known_raise() -> None:
    seg = Segments.from_lengths([[3]])
    with pytest.raises(InputError, match="layer_types"):
        hf.masks_by_layer_type(seg, transformers.LlamaConfig())
    config = transformers.Gemma2Config(num_hidden_layers=2)
    config.sliding_window = None
    with pytest.raises(InputError, match="needs sliding_window"):
        hf.masks_by_layer_type(seg, config)


# ---------------------------------------------------------------------- positions of special families


def test_positions_of_the_roberta_family_start_after_the_padding_index() -> None:
    from cloison.proof.tiny import tiny_model

    model, config = tiny_model("roberta")
    model = model.eval()
    assert config.pad_token_id == 0
    first = config.pad_token_id + 1
    seg = Segments.from_lengths([np.concatenate([block.segments.seq_lengths for block in BLOCKS])])
    with torch.no_grad():
        right = model(**cloison.collate(BLOCKS, kernel="mask", position_start=first)).logits
        zero = model(**cloison.collate(BLOCKS, kernel="mask")).logits
    alone = _alone(model, BLOCKS)
    assert _largest_difference(right, alone, seg) < 1e-5
    assert _largest_difference(zero, alone, seg) > 1e-3


def test_mrope_text_planes_isolate_in_a_real_model() -> None:
    from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLTextConfig
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLTextModel

    config = Qwen2_5_VLTextConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        rope_parameters={"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4},
    )
    torch.manual_seed(0)
    model = Qwen2_5_VLTextModel(config).eval()
    seg = Segments.from_lengths([np.concatenate([block.segments.seq_lengths for block in BLOCKS])])
    batch = cloison.collate(BLOCKS)
    wrong = batch["position_ids"].expand(3, 1, -1)
    batch["position_ids"] = hf.mrope_positions(seg)
    assert batch["position_ids"].shape == (4, 1, seg.num_tokens)
    batch.pop("labels")
    with torch.no_grad():
        right = model(**batch)
        leaking = model(**{**batch, "position_ids": wrong})
        alone = [
            model(input_ids=torch.tensor(s.input_ids[None].astype(np.int64)), use_cache=False)[0][0] for s in samples_of(BLOCKS)
        ]
    assert _largest_difference(right[0], alone, seg) < 1e-5
    assert _largest_difference(leaking[0], alone, seg) > 1e-2


def test_grid_positions_of_another_number_of_tokens_raise() -> None:
    with pytest.raises(BoundaryError, match=r"grid positions must be \[3, 5\]"):
        hf.mrope_positions(Segments.from_lengths([[3, 2]]), np.zeros((3, 4)))


# ---------------------------------------------------------------------- columns, weights, wrong use


def test_weights_are_never_dropped_in_silence() -> None:
    weighted = a_block([3, 2], 8, loss_weights=np.array([0, 1, 2, 0, 0.5]))
    with pytest.raises(InputError, match="no model of transformers reads them"):
        cloison.collate([weighted, BLOCKS[1]])
    kept = cloison.collate([weighted, BLOCKS[1]], loss_weights="keep", pad_to_multiple_of=4)
    assert kept["loss_weights"].tolist() == [[0, 1, 2, 0, 0.5, 1, 1, 1, 1, 1, 0, 0]]
    assert "loss_weights" not in cloison.collate([weighted], loss_weights="drop")
    assert hf.rows([weighted, BLOCKS[1]], loss_weights="keep")["loss_weights"].shape == (2, 24)


def test_token_columns_travel_when_asked() -> None:
    block = a_block([3, 2], 8, token_columns={"advantages": np.arange(5, dtype=np.float32)})
    batch = cloison.collate([block, block], columns=["advantages"], pad_to_multiple_of=12)
    assert batch["advantages"].tolist() == [[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 0]]
    with pytest.raises(InputError, match="'rewards' does not"):
        cloison.collate([block], columns=["rewards"])
    with pytest.raises(InputError, match="no key of the batch"):
        cloison.collate([block], columns=["labels"])


def test_wrong_use_says_what_to_do() -> None:
    with pytest.raises(InputError, match="at least one block"):
        cloison.collate([])
    with pytest.raises(InputError, match="Item 1 is a dict"):
        cloison.collate([BLOCKS[0], {"input_ids": [1]}])
    with pytest.raises(InputError, match="pad_to_multiple_of must be at least 1"):
        cloison.collate(BLOCKS, pad_to_multiple_of=0)
    with pytest.raises(InputError, match="It is 'flashy'") as raised:
        cloison.collate(BLOCKS, kernel="flashy")
    assert "'flash'" in raised.value.asked


# ---------------------------------------------------------------------- reported faults


def test_case_XATT_02(cases: dict[str, dict[str, Any]]) -> None:
    case = cases["XATT-02"]["input"]
    block = a_block(case["lengths"])
    with pytest.raises(InputError, match=case["backend"]):
        cloison.collate([block], kernel=case["backend"])
    mask = cloison.collate([block], kernel="mask")["attention_mask"]
    assert np.array_equal((mask == 0).numpy(), Segments.from_lengths([case["lengths"]]).dense_mask())
    assert cloison.collate([block])["position_ids"].tolist() == [case["position_ids"]]


def test_case_XATT_09(cases: dict[str, dict[str, Any]]) -> None:
    case = cases["XATT-09"]
    block = a_block(case["input"]["lengths"], case["input"]["capacity"])
    batch = hf.rows(block, kernel=("flash", "mask"), pad_id=case["input"]["pad_id"])
    assert batch["cu_seq_lens_q"].tolist() == case["expectation"]["cu_seqlens_covering"]
    assert block.segments.cu_seqlens().tolist() == case["expectation"]["cu_seqlens_real"]
    assert block.segments.segment_ids().tolist() == [case["expectation"]["segment_ids"]]
    assert batch["labels"][0, 5:].tolist() == case["expectation"]["labels_pad"]
    assert not (batch["attention_mask"][0, 0, :5, 5:] == 0).any()


def test_case_XATT_11(cases: dict[str, dict[str, Any]]) -> None:
    case = cases["XATT-11"]
    seg = Segments.from_lengths([case["input"]["lengths"]])
    assert (hf.mask4d(seg, causal=False)[0, 0] == 0).int().tolist() == case["expectation"]["allowed"]


def test_case_POS_01(cases: dict[str, dict[str, Any]]) -> None:
    case = cases["POS-01"]
    lengths, expected = case["input"]["lengths"], case["expectation"]
    tokens = sum(lengths)
    block = a_block(lengths, token_columns={"loss_mask": np.ones(tokens, np.int64)})
    multiple = case["input"]["pad_to_multiple_of"]
    batch = cloison.collate([block], kernel="seq_idx", pad_to_multiple_of=multiple, columns=["loss_mask"])
    batch["segment_ids"] = batch["seq_idx"]
    assert {name: batch[name].shape[1] for name in expected["len_of"]} == expected["len_of"]
    assert batch["input_ids"].shape[1] == expected["row_length"]
    assert batch["position_ids"][0, :tokens].tolist() == expected["position_ids_real"]
    assert batch["input_ids"].shape[1] - tokens == expected["pad_count"]


def test_case_POS_02(cases: dict[str, dict[str, Any]]) -> None:
    expected = cases["POS-02"]["expectation"]
    one = np.array([[0, 1, 1, 1, 1, 3], [0, 1, 1, 2, 2, 3], [0, 1, 2, 1, 2, 3]])
    seg = Segments.from_lengths([expected["segments"]])
    found = hf.mrope_positions(seg, np.concatenate([one, one], axis=1))[:, 0]
    assert [found[1].tolist(), found[2].tolist(), found[3].tolist()] == [expected[axis] for axis in "thw"]
    assert found[0].tolist() == [0, 1, 2, 3, 4, 5] * 2
    assert seg.cu_seqlens().tolist() == expected["cu_seqlens"]


def test_case_POS_04(cases: dict[str, dict[str, Any]]) -> None:
    case = cases["POS-04"]
    config = transformers.GPT2Config(vocab_size=96, n_embd=16, n_layer=1, n_head=2, n_positions=case["input"]["max_position"])
    model = transformers.GPT2LMHeadModel(config).eval()
    batch = cloison.collate([a_block(case["input"]["lengths"])], kernel="mask")
    assert int(batch["position_ids"].max()) == case["expectation"]["max_used_position"]
    with torch.no_grad():
        assert torch.isfinite(model(**batch).logits).all()
        with pytest.raises(IndexError):
            model(**{**batch, "position_ids": torch.arange(12)[None]})


def test_case_POS_05(cases: dict[str, dict[str, Any]]) -> None:
    case = cases["POS-05"]
    lengths, window = case["input"]["lengths"], case["input"]["original_window"]
    model = _llama(max_position_embeddings=window, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4})
    block = a_block(lengths)
    batch = cloison.collate([block])
    assert int(batch["position_ids"].max()) + 1 == case["expectation"]["length_used_for_scaling"] <= window
    with torch.no_grad():
        packed = model(**batch).logits
    assert _largest_difference(packed, _alone(model, [block]), block.segments) < 1e-5


def test_case_POS_07(cases: dict[str, dict[str, Any]]) -> None:
    samples = cases["POS-07"]["input"]["samples"]
    model = _llama()
    [block] = cloison.pack_samples(samples, capacity=8, order="input")
    batch = cloison.collate([block], kernel="mask")
    without_reset = {**batch, "position_ids": torch.arange(block.num_tokens)[None]}
    with torch.no_grad():
        for given_batch in (batch, without_reset):
            logits = model(**given_batch).logits[0]
            assert torch.allclose(logits[:3], logits[3:], atol=1e-5)
