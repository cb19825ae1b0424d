"""What a loss trains, read from the loss: against labels, against reported faults, for losses of many forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from torch.nn import functional  # noqa: E402

from cloison.errors import InputError  # noqa: E402
from cloison.packing.memory import pack_samples  # noqa: E402
from cloison.proof.fit import from_hidden, from_logits, from_real_hidden, from_real_logits  # noqa: E402
from cloison.proof.judging import judge  # noqa: E402
from cloison.proof.signals import signal  # noqa: E402
from cloison.proof.target_findings import target_findings  # noqa: E402
from cloison.proof.targets import read_targets  # noqa: E402
from cloison.proof.throughput import throughput  # noqa: E402
from cloison.proof.tiny import tiny_model  # noqa: E402
from cloison.proof.truth import SampleIndex, truth_of  # noqa: E402
from cloison.proof.weights import StepWeights, weigh, weights_verdict  # noqa: E402
from cloison.samples import Sample  # noqa: E402
from cloison.segments import Segments  # noqa: E402

MODEL = tiny_model("llama")[0]


def batch_of(samples: list[list[int]], labels: list[int] | None = None) -> dict[str, Any]:
    ids = torch.tensor([[i for s in samples for i in s]])
    segments = Segments.from_lengths([[len(s) for s in samples]])
    asked = ids.clone() if labels is None else torch.tensor([labels])
    if labels is None:
        asked[0, torch.from_numpy(segments.first_tokens().copy())] = -100
    positions = torch.from_numpy(segments.position_ids().copy())
    return {"input_ids": ids, "labels": asked, "position_ids": positions, "use_cache": False}


def per_token(outputs: Any, labels: Any, logits: Any = None) -> Any:
    logits = (outputs.logits if logits is None else logits)[:, :-1].float()
    return functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), reduction="none").view(labels.shape[0], -1)


def kinds(found: Any) -> list[str]:
    return sorted(f.kind for f in found if f.severity == "error")


# ---------------------------------------------------------------------- the reading itself


@settings(max_examples=15, deadline=None)
@given(lengths=st.lists(st.integers(1, 7), min_size=1, max_size=5), seed=st.integers(0, 2**16))
def test_targets_are_those_of_the_segments(lengths: list[int], seed: int) -> None:
    draw = np.random.default_rng(seed)
    samples = []
    for length in lengths:
        ids = draw.integers(4, 96, length)
        samples.append(Sample(ids, np.where(draw.random(length) < 0.7, ids, -100)))
    (block,) = pack_samples(samples, capacity=sum(lengths))
    if not block.num_targets:
        return
    found = read_targets(MODEL, signal("positions")([block]))
    assert np.where(found.tokens[0] == -1, -100, found.tokens[0]).tolist() == block.targets.tolist()
    assert np.allclose(found.weights[found.tokens != -1], 1 / block.num_targets, rtol=1e-5)


LOSSES = {
    "mean": (lambda o, b: per_token(o, b["labels"]).sum() / 7, "cross entropy"),
    "smoothing": (
        lambda o, b: functional.cross_entropy(o.logits[0, :-1].float(), b["labels"][0, 1:], label_smoothing=0.1),
        "label smoothing",
    ),
    "z": (
        lambda o, b: (
            per_token(o, b["labels"]).sum() / 7
            + 1e-3 * (torch.logsumexp(o.logits[:, :-1], -1) ** 2)[b["labels"][:, 1:] != -100].mean()
        ),
        "z-loss",
    ),
    "both": (
        lambda o, b: (
            functional.cross_entropy(o.logits[0, :-1].float(), b["labels"][0, 1:], label_smoothing=0.2)
            + 1e-2 * (torch.logsumexp(o.logits[:, :-1], -1) ** 2)[b["labels"][:, 1:] != -100].mean()
        ),
        "label smoothing and z-loss",
    ),
    "cap": (lambda o, b: per_token(o, b["labels"], 30 * torch.tanh(o.logits / 30)).sum() / 7, "cross entropy"),
    "dft": (
        lambda o, b: (per_token(o, b["labels"]) * torch.exp(-per_token(o, b["labels"])).detach()).sum(),
        "confidence-weighted",
    ),
    "focal": (
        lambda o, b: (per_token(o, b["labels"]) * (1 - torch.exp(-per_token(o, b["labels"]))) ** 2).sum(),
        "confidence-weighted",
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_many_forms(name: str, dtype: str) -> None:
    loss, form = LOSSES[name]
    model = tiny_model("llama")[0].to(getattr(torch, dtype))
    batch = batch_of([[11, 12, 13, 14, 15, 16], [21, 22, 23]])
    found = read_targets(model, batch, loss)
    assert found.tokens.tolist() == [[12, 13, 14, 15, 16, -1, 22, 23, -1]]
    if dtype == "float32":
        assert found.shape.name == form
        assert found.shape.smoothing == pytest.approx({"smoothing": 0.1, "both": 0.2}.get(name, 0), abs=1e-3)
        assert found.shape.z == pytest.approx({"z": 1e-3, "both": 1e-2}.get(name, 0), abs=1e-5)
    if form != "confidence-weighted":
        expected = 1 / 7
        assert np.allclose(found.weights[found.tokens != -1], expected, rtol=2e-2 if dtype == "bfloat16" else 1e-4)


@pytest.mark.parametrize("kind", ["granite", "cohere", "gemma2", "phi", "gpt2"])
def test_scaled_and_capped_logits(kind: str) -> None:
    found = read_targets(tiny_model(kind)[0], batch_of([[11, 12, 13], [21, 22, 23, 24]]))
    assert found.tokens.tolist() == [[12, 13, -1, 22, 23, 24, -1]]
    assert found.weights.sum() == pytest.approx(1, abs=1e-4)


def test_negative_weights_keep_their_sign() -> None:
    signs = torch.tensor([[1.0, -1.0, 0.5, 1.0]])
    found = read_targets(MODEL, batch_of([[11, 12, 13, 14, 15]]), lambda o, b: (per_token(o, b["labels"]) * signs).sum())
    assert found.weights[0, :4].tolist() == pytest.approx([1, -1, 0.5, 1], abs=1e-5)
    assert found.tokens[0, :4].tolist() == [12, 13, 14, 15]


def test_soft_targets_are_called_so() -> None:
    teacher = torch.softmax(torch.randn(96, generator=torch.Generator().manual_seed(1)), 0)
    found = read_targets(MODEL, batch_of([[11, 12, 13]]), lambda o, b: -(functional.log_softmax(o.logits, -1) * teacher).sum())
    assert found.shape.name == "soft targets"


@pytest.mark.parametrize("bias", [False, True])
def test_hidden_states_say_what_logits_say(bias: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    head = torch.randn(96, 32, generator=draw) / 32**0.5
    offset = torch.randn(96, generator=draw) if bias else None
    targets, weights = torch.randint(0, 96, (40,), generator=draw), torch.rand(40, generator=draw) + 0.1
    for hidden in (torch.zeros(40, 32), torch.randn(40, 32, generator=draw)):
        hidden.requires_grad_()
        logits = functional.linear(hidden, head, offset)
        logits.retain_grad()
        (functional.cross_entropy(logits, targets, reduction="none") * weights).sum().backward()
        if not hidden.any():
            fits = [from_hidden(hidden.grad, head, offset)]
            fits += [] if bias else [from_logits(logits.grad)]
        else:
            fits = [
                from_real_hidden(hidden.grad, hidden.detach(), head, offset),
                from_real_logits(logits.grad, logits.detach()),
            ]
        for fit in fits:
            assert np.array_equal(fit.tokens, targets.numpy())
            assert np.allclose(fit.weights, weights.numpy(), rtol=1e-3)
            assert fit.runners_up.max() < 1e-3


def test_identical_rows_of_the_head_are_ambiguous() -> None:
    head = torch.randn(96, 32, generator=torch.Generator().manual_seed(0))
    head[50] = head[12]
    hidden = torch.zeros(1, 32, requires_grad=True)
    functional.cross_entropy(hidden @ head.T, torch.tensor([12])).backward()
    assert from_hidden(hidden.grad, head).ties.tolist() == [1]


def test_what_cannot_be_read_raises() -> None:
    batch = batch_of([[11, 12, 13]])
    with pytest.raises(InputError, match="must depend"):
        read_targets(MODEL, batch, lambda o, b: torch.tensor(1.0))
    with pytest.raises(InputError, match="Pass labels"):
        read_targets(MODEL, {k: v for k, v in batch.items() if k != "labels"})
    with pytest.raises(InputError, match="input_ids"):
        read_targets(MODEL, {"inputs_embeds": torch.zeros(1, 3, 32)})
    with pytest.raises(InputError, match="either"):
        read_targets(MODEL, batch, lambda o, b: MODEL.model.norm.weight.sum())


def test_nothing_is_left_behind() -> None:
    model = tiny_model("llama")[0].train()
    model.lm_head.weight.grad = torch.ones_like(model.lm_head.weight)
    state = torch.get_rng_state()
    read_targets(model, batch_of([[11, 12, 13]]))
    assert torch.equal(torch.get_rng_state(), state) and model.training
    assert model.model.layers[0].self_attn.q_proj.weight.grad is None and (model.lm_head.weight.grad == 1).all()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


# ---------------------------------------------------------------------- truth


def test_truth_prefers_what_is_known() -> None:
    batch = batch_of([[11, 12, 13], [21, 22]])
    assert truth_of(batch, seq_lengths=[[3, 2]]).source == "the lengths that were passed"
    assert truth_of(batch, row_lengths=[([11, 12, 13, 21, 22], [3, 2])]).segment_ids.tolist() == [[1, 1, 1, 2, 2]]
    known = truth_of(batch, samples=SampleIndex([[11, 12, 13], [21, 22]]))
    assert known.segment_ids.tolist() == [[1, 1, 1, 2, 2]] and not known.guessed
    stated = truth_of(batch | {"cu_seq_lens_q": torch.tensor([0, 3, 5], dtype=torch.int32)})
    assert stated.segment_ids.tolist() == [[1, 1, 1, 2, 2]] and not stated.guessed
    assert truth_of(batch).guessed and truth_of(batch).segment_ids.tolist() == [[1, 1, 1, 2, 2]]
    bare = {"input_ids": batch["input_ids"]}
    assert truth_of(bare, ends=[13], packed=True).segment_ids.tolist() == [[1, 1, 1, 2, 2]]
    assert truth_of(bare, ends=[13]).segment_ids.tolist() == [[1, 1, 1, 1, 1]]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(4, 7), min_size=1, max_size=5), min_size=1, max_size=6), st.integers(0, 4))
def test_samples_cover_any_row_that_is_made_of_them(samples: list[list[int]], padding: int) -> None:
    row = np.array([i for s in samples for i in s] + [0] * padding)
    segments, _, _ = SampleIndex(samples).cover(row)
    assert (segments[: row.size - padding] > 0).all() and not segments[row.size - padding :].any()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 14), min_size=2, max_size=8), st.integers(4, 20), st.integers(0, 9))
def test_rows_cut_from_a_stream_of_samples(lengths: list[int], width: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    samples = [draw.permutation(np.arange(4, 90))[:length].tolist() for length in lengths]
    stream = np.array([i for s in samples for i in s])
    number = np.repeat(np.arange(len(samples)), lengths)
    index = SampleIndex(samples)
    for start in range(0, stream.size - width + 1, width):
        part, own = stream[start : start + width], number[start : start + width]
        found = index.cut(part)
        if (found > 0).all() and np.unique(stream).size == stream.size:
            assert np.array_equal(np.diff(found) != 0, np.diff(own) != 0)
        assert (found > 0).all() or np.unique(own).size < 3


def test_left_padding_is_padding() -> None:
    ids = torch.tensor([[0, 0, 11, 12, 13], [21, 22, 23, 24, 25]])
    found = truth_of({"input_ids": ids}, samples=SampleIndex([[11, 12, 13], [21, 22, 23, 24, 25]]))
    assert found.segment_ids.tolist() == [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]] and not found.guessed


# ---------------------------------------------------------------------- weights


def parts(*weights: list[float], samples: list[list[int]] | None = None, ranks: list[int] | None = None) -> list[StepWeights]:
    out = []
    for index, own in enumerate(weights):
        numbers = np.array(samples[index]) if samples else np.ones(len(own), np.int64)
        out.append(StepWeights(np.array(own), numbers, ranks[index] if ranks else 0))
    return out


def test_weights_are_named() -> None:
    assert weigh(parts([0.25], [0.25] * 3)).kind == "token_mean"
    assert weigh(parts([0.5], [0.5 / 3] * 3)).kind == "mean of means over micro-batches"
    assert weigh(parts([1.0], [1 / 3] * 3, ranks=[0, 1]), 2).kind == "mean of means over ranks"
    assert weigh(parts([1 / 4] * 2, [1 / 8] * 4, samples=[[1, 1], [2, 2, 2, 2]])).kind in (
        "mean of means over micro-batches",
        "sample_mean",
    )
    assert weigh(parts([1 / 4, 1 / 4, 1 / 2], samples=[[1, 1, 2]])).kind == "sample_mean"
    assert weigh(parts([0.1, 0.2, 0.7], samples=[[1, 1, 2]])).kind == "own weights"
    assert weigh([]).kind == "nothing"
    assert weigh(parts([1.0, 1.0], [1.0, 1.0], ranks=[0, 1]), 2).total == pytest.approx(2)


def test_sums_beside_one_are_named() -> None:
    _, found = weights_verdict(weigh(parts([0.5] * 2, [0.5] * 2)), "token_mean")
    assert [f.kind for f in found] == ["accumulation_off"] and "added, not averaged" in found[0].message
    _, found = weights_verdict(weigh(parts([0.125] * 2, [0.125] * 2)), "token_mean")
    assert [f.kind for f in found] == ["accumulation_off"] and "once too often" in found[0].message
    _, found = weights_verdict(weigh(parts([0.25] * 2)), "token_mean")
    assert [f.kind for f in found] == ["loss_scale"]
    verdict, found = weights_verdict(weigh(parts([0.25] * 2)), None)
    assert verdict.status == "right" and not found


# ---------------------------------------------------------------------- the reported faults


def read(batch: dict[str, Any], samples: list[list[int]], loss: Any = None, ends: tuple[int, ...] = ()) -> list[str]:
    found = read_targets(MODEL, batch, loss)
    truth = truth_of(batch, seq_lengths=[[len(s) for s in samples]], ends=ends)
    return kinds(target_findings(batch["input_ids"].numpy(), found, truth))


def test_case_LBL_01(cases: dict[str, Any]) -> None:
    case = cases["LBL-01"]
    samples = case["input"]["samples"]
    found = read_targets(MODEL, batch_of(samples, case["expectation"]["labels"]))
    assert found.num_targets == case["expectation"]["scored"]
    assert read(batch_of(samples, case["expectation"]["labels"]), samples) == []
    assert read(batch_of(samples, [i for s in samples for i in s]), samples) == ["boundary_target"]


def test_case_LBL_02(cases: dict[str, Any]) -> None:
    case = cases["LBL-02"]
    samples, expectation = case["input"]["samples"], case["expectation"]
    for targets, wanted in ((expectation["targets"], []), (expectation["wrong_if"]["global_roll"], ["boundary_target"])):
        batch = batch_of(samples) | {"shift_labels": torch.tensor([targets])}
        assert read(batch, samples) == wanted
        tokens = read_targets(MODEL, batch).tokens[0]
        assert np.where(tokens == -1, -100, tokens).tolist() == targets


def test_case_LBL_03(cases: dict[str, Any]) -> None:
    case = cases["LBL-03"]
    ids = [11, 12, 13, 14, 21, 22]
    batch = batch_of([ids[:4], ids[4:]])
    weights = case["expectation"]["predictor_weights"]
    whole = batch | {"labels": batch["input_ids"]}

    def masked(mask: list[int]) -> Any:
        return lambda o, b: (per_token(o, whole["labels"]) * torch.tensor(mask[:-1])).sum() / max(sum(mask), 1)

    found = read_targets(MODEL, batch, masked(weights))
    assert (found.tokens[0] != -1).astype(int).tolist() == weights
    assert found.num_targets == case["expectation"]["trained_tokens"]
    wrong = read_targets(MODEL, batch, masked(case["expectation"]["wrong_if"]["unshifted_last_cleared"]))
    asked = np.array([[-100, -100, 13, 14, -100, 22]])
    truth = truth_of(batch, seq_lengths=[[4, 2]])
    from dataclasses import replace

    truth = replace(truth, labels=asked)
    assert kinds(target_findings(batch["input_ids"].numpy(), found, truth)) == []
    assert kinds(target_findings(batch["input_ids"].numpy(), wrong, truth)) == ["target_missing"]


def test_case_LBL_05(cases: dict[str, Any]) -> None:
    numbers = torch.tensor([cases["LBL-05"]["input"]["target_segment_ids"]])
    right = torch.tensor([cases["LBL-05"]["expectation"]["loss_weights"]])
    batch = batch_of([[11, 12, 13], [21, 22, 23, 24]])
    labels = batch["input_ids"]

    def weighted(weights: Any) -> Any:
        return read_targets(MODEL, batch, lambda o, b: (per_token(o, labels) * weights).sum() / weights.sum())

    for weights, wanted in ((right, "token_mean"), (numbers, "own weights")):
        found = weighted(weights)
        asked = found.tokens != -1
        one = StepWeights(found.weights[asked], np.arange(int(asked.sum())) * 0, 0)
        assert weigh([one]).kind == wanted


def test_case_LBL_09(cases: dict[str, Any]) -> None:
    tokens = cases["LBL-09"]["input"]["tokens"]
    batch = {"input_ids": torch.tensor([tokens]), "labels": torch.tensor([[-100, 8, 9, 0, -100]]), "use_cache": False}
    truth = truth_of(batch, seq_lengths=[[3]])
    assert kinds(target_findings(batch["input_ids"].numpy(), read_targets(MODEL, batch), truth)) == ["padding_trained"]
    batch["labels"][0, 3] = -100
    found = read_targets(MODEL, batch)
    assert (found.tokens[0] != -1).astype(int).tolist() == cases["LBL-09"]["expectation"]["predictor_weights"]
    assert kinds(target_findings(batch["input_ids"].numpy(), found, truth)) == []


def test_case_EOS_02(cases: dict[str, Any]) -> None:
    case = cases["EOS-02"]
    ids = [*case["input"]["ids"], *[case["input"]["pad_id"]] * 2]
    for labels, wanted in (
        (case["expectation"]["labels_unshifted"], []),
        (case["expectation"]["wrong_if"]["mask_by_pad_id"], ["terminator_never_trained"]),
    ):
        batch = {"input_ids": torch.tensor([ids]), "labels": torch.tensor([labels]), "use_cache": False}
        truth = truth_of(batch, seq_lengths=[[3]], ends=[case["input"]["eos_id"]])
        assert kinds(target_findings(batch["input_ids"].numpy(), read_targets(MODEL, batch), truth)) == wanted


def test_case_NORM_01(cases: dict[str, Any]) -> None:
    losses = cases["NORM-01"]["input"]["microbatch_token_losses"]
    sizes = [len(part) for part in losses]
    total = sum(sizes)
    token = weigh(parts(*[[1 / total] * n for n in sizes]))
    means = weigh(parts(*[[1 / n / len(sizes)] * n for n in sizes]))
    assert token.kind == "token_mean" and means.kind == "mean of means over micro-batches"
    assert sum(sum(part) for part in losses) / total == cases["NORM-01"]["expectation"]["loss"]
    assert sum(sum(p) / len(p) / len(sizes) for p in losses) == cases["NORM-01"]["expectation"]["wrong_if"]["mean_of_means"]


def test_case_NORM_04(cases: dict[str, Any]) -> None:
    sizes = [sample["tokens"] for sample in cases["NORM-04"]["input"]["samples"]]
    given = cases["NORM-04"]["expectation"]["token_weights_for_sample_mean"]
    numbers = [[1] * sizes[0] + [2] * sizes[1]]
    own = weigh(parts([given[0]] * sizes[0] + [given[1]] * sizes[1], samples=numbers))
    assert own.kind == "sample_mean" and own.total == pytest.approx(1, abs=1e-5)


def test_case_NORM_08(cases: dict[str, Any]) -> None:
    samples = [[11, 12, 13]]
    batch = batch_of(samples)
    holes = torch.tensor([[1.0, float("nan")]])

    def multiplied(o: Any, b: Any) -> Any:
        return (per_token(o, b["labels"]) * holes * torch.tensor([[1, 0]])).sum()

    def selected(o: Any, b: Any) -> Any:
        return per_token(o, b["labels"])[torch.tensor([[True, False]])].sum()

    assert cases["NORM-08"]["expectation"]["wrong_if"]["multiply_by_mask"] == "NaN"
    assert read(batch, samples, multiplied) == ["not_finite"]
    assert read(batch, samples, selected) == []


def test_case_CFG_02(cases: dict[str, Any]) -> None:
    """Whether rows hold several samples is seen from the batch, whatever was asked for."""
    assert "observable from the batch" in cases["CFG-02"]["why"]
    packed = throughput([batch_of([[11, 12, 13], [21, 22]])], seq_lengths=[[[3, 2]]])
    alone = throughput([batch_of([[11, 12, 13]])], seq_lengths=[[[3]]])
    assert (packed.samples, packed.rows) == (2, 1) and (alone.samples, alone.rows) == (1, 1)
    assert packed.utilization == 1.0 and packed.target_utilization == 3 / 5 and packed.padded_utilization == 5 / 6


# ---------------------------------------------------------------------- verify's own use


def test_judge_on_blocks() -> None:
    samples = [Sample([11, 12, 13, 2], [-100, -100, 13, 2]), Sample([21, 22, 2], [-100, 22, 2])]
    blocks = pack_samples(samples, capacity=7)
    batch = signal("positions")(blocks)
    verdict, findings = judge(MODEL, batch, blocks)
    assert verdict.status == "right" and not kinds(findings)
    whole = batch | {"labels": batch["input_ids"]}
    verdict, findings = judge(MODEL, whole, blocks)
    assert verdict.status == "wrong" and kinds(findings) == ["boundary_target", "prompt_trained"]
    verdict, _ = judge(MODEL, {k: v for k, v in batch.items() if k != "labels"}, blocks)
    assert verdict.status == "not tested"


@pytest.mark.parametrize("coefficient", [1e-4, 1e-3])
def test_a_z_loss_of_the_usual_size_is_named(coefficient: float) -> None:
    def z_loss(outputs: Any, batch: Any) -> Any:
        logits, labels = outputs.logits[:, :-1].float(), batch["labels"][:, 1:]
        squared = torch.logsumexp(logits, -1)[labels != -100] ** 2
        return per_token(outputs, batch["labels"]).sum() / len(squared) + coefficient * squared.mean()

    reading = read_targets(MODEL, batch_of([[5, 6, 7, 8], [9, 10, 11]]), z_loss)
    assert reading.shape.name == "z-loss" and reading.shape.z == pytest.approx(coefficient, rel=0.02)
    assert read_targets(MODEL, batch_of([[5, 6, 7, 8], [9, 10, 11]])).shape.name == "cross entropy"


def test_two_micro_batches_of_means_show_in_bfloat16_too() -> None:
    sizes = (40, 46)  # 15 % apart, and a tenth of that is the rounding of bfloat16
    made = [StepWeights(np.full(n, 0.5 / n), np.zeros(n, np.int64), precision=2.0**-7) for n in sizes]
    assert weigh(made).kind == "mean of means over micro-batches"
    rounded = [
        StepWeights(np.full(40, 1 / 80) * (1 + 2.0**-8 * (i % 2)), np.zeros(40, np.int64), precision=2.0**-7) for i in (0, 1)
    ]
    assert weigh(rounded).kind == "token_mean"
