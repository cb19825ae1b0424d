"""Losses under packing: values, gradients, and what no arrangement of blocks, micro-batches or ranks may change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cloison
from cloison import losses
from cloison.blocks import Block
from cloison.errors import BoundaryError, InputError
from cloison.segments import IGNORE, Segments

torch = pytest.importorskip("torch")

VOCABULARY = 11


def logits_for(per_token: list[list[float]]) -> tuple[Any, Any]:
    """Logits and labels whose targets have exactly these losses, a row each; label 1 everywhere but at the first token."""
    width = max(map(len, per_token)) + 1
    logits = torch.zeros(len(per_token), width, 2, dtype=torch.float64)
    labels = torch.full((len(per_token), width), IGNORE)
    for row, values in enumerate(per_token):
        for index, value in enumerate(values):
            # loss = log(1 + exp(a)) for logits (a, 0) and target 1
            logits[row, index, 0] = np.log(np.expm1(value)) if value else -1e4
            labels[row, index + 1] = 1
    return logits.requires_grad_(), labels


def random_rows(seed: int, rows: int = 2, width: int = 12) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, width, VOCABULARY, generator=generator)
    labels = torch.randint(0, VOCABULARY, (rows, width), generator=generator)
    labels[torch.rand(rows, width, generator=generator) < 0.4] = IGNORE
    labels[:, 0] = IGNORE
    return logits.requires_grad_(), labels


# ---------------------------------------------------------------------- values and gradients


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_token_losses_are_those_of_torch_at_the_index_of_labels(seed: int) -> None:
    logits, labels = random_rows(seed)
    found = losses.token_losses(logits, labels)
    wanted = torch.nn.functional.cross_entropy(
        logits[:, :-1].transpose(1, 2), labels[:, 1:], ignore_index=IGNORE, reduction="none"
    )
    assert torch.allclose(found[:, 1:], wanted)
    assert not found[:, 0].any()
    targets = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORE)
    shifted = losses.token_losses(logits, targets, shifted=True)
    assert torch.allclose(shifted[:, :-1], wanted)


def test_token_mean_is_that_of_transformers() -> None:
    from transformers.loss.loss_utils import ForCausalLMLoss

    logits, labels = random_rows(3)
    for denominator in (None, 17):
        wanted = ForCausalLMLoss(logits, labels, VOCABULARY, num_items_in_batch=denominator)
        assert torch.allclose(losses.token_mean(logits, labels, denominator=denominator), wanted)
        assert torch.allclose(losses.compute_loss_func({"logits": logits}, labels, denominator), wanted)


def test_gradient_of_the_token_mean_is_that_of_torch() -> None:
    logits, labels = random_rows(5)
    [found] = torch.autograd.grad(losses.token_mean(logits, labels), logits)
    plain = torch.nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:], ignore_index=IGNORE)
    [wanted] = torch.autograd.grad(plain, logits)
    assert torch.allclose(found, wanted, atol=1e-7)


def test_nan_where_nothing_is_asked_reaches_no_value_and_no_gradient() -> None:
    logits, labels = random_rows(7)
    weights = torch.rand(labels.shape)
    seg = Segments.from_lengths([[5, 7], [12]])
    poisoned = logits.detach().clone()
    asked = torch.nn.functional.pad(labels[:, 1:] != IGNORE, (0, 1))
    poisoned[~asked] = float("nan")
    weights[labels == IGNORE] = float("nan")
    poisoned.requires_grad_()
    for loss in (
        losses.token_mean(poisoned, labels, weights),
        losses.sample_mean(poisoned, labels, seg),
        losses.token_losses(poisoned, labels).sum(),
        losses.segment_losses(poisoned, labels, seg, weights)[0].sum(),
    ):
        assert torch.isfinite(loss)
        [gradient] = torch.autograd.grad(loss, poisoned, retain_graph=True)
        assert torch.isfinite(gradient).all()
        assert not gradient[~asked].any()
        assert gradient[asked].any()


def test_nothing_to_train_is_zero_with_a_zero_gradient() -> None:
    logits, _ = random_rows(9)
    labels = torch.full(logits.shape[:2], IGNORE)
    seg = Segments.from_lengths([[12], [12]])
    for loss in (
        losses.token_mean(logits, labels),
        losses.token_mean(logits, labels, denominator=0),
        losses.token_mean(logits, labels, denominator=torch.tensor(8)),
        losses.sample_mean(logits, labels, seg),
        losses.sample_mean(logits, labels, seg, num_samples=0),
        losses.compute_loss_func({"logits": logits}, labels, torch.tensor(0)),
    ):
        assert float(loss.detach()) == 0
        [gradient] = torch.autograd.grad(loss, logits, retain_graph=True)
        assert not gradient.any()


# ---------------------------------------------------------------------- packing changes nothing


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(2, 9), min_size=1, max_size=6), st.integers(0, 10**6))
def test_segments_have_the_losses_of_the_samples_alone(lengths: list[int], seed: int) -> None:
    seg = Segments.from_lengths([lengths[::2], lengths[1::2]], 45) if len(lengths) > 1 else Segments.from_lengths([lengths], 9)
    logits, labels = random_rows(seed, seg.num_rows, seg.width)
    valid = torch.tensor(seg.segment_ids() > 0)
    starts = torch.tensor(seg.position_ids() == 0)
    labels[~valid | starts] = IGNORE
    sums, counts = losses.segment_losses(logits, labels, seg)
    assert sums.shape == counts.shape == (seg.num_segments,)
    pieces = zip(logits[valid].split(seg.seq_lengths.tolist()), labels[valid].split(seg.seq_lengths.tolist()), strict=True)
    for (alone, asked), total, count in zip(pieces, sums, counts, strict=True):
        value, number = losses.loss_sum(alone[None], asked[None])
        assert torch.allclose(value, total, atol=1e-5)
        assert int(number) == int(count)


def test_the_mean_over_samples_does_not_see_the_packing() -> None:
    rng = np.random.default_rng(0)
    samples = [cloison.Sample(rng.integers(0, VOCABULARY, n)) for n in (3, 9, 2, 5, 7, 4)]
    table = torch.randn(VOCABULARY, VOCABULARY, dtype=torch.float64)  # a bigram model: each token's logits are its row
    alone = [
        losses.token_mean(table[torch.tensor(np.array(s.input_ids))][None], torch.tensor(np.array(s.labels))[None].long())
        for s in samples
    ]
    wanted = float(sum(alone) / len(samples))
    for capacity in (9, 14, 30):
        blocks = cloison.pack_samples(samples, capacity=capacity)
        num_samples = len(samples)
        found = 0.0
        for block in blocks:
            batch = cloison.collate([block])
            found += float(
                losses.sample_mean(
                    table[batch["input_ids"]],
                    batch["labels"],
                    Segments.from_lengths([block.segments.seq_lengths]),
                    num_samples=num_samples,
                )
            )
        assert found == pytest.approx(wanted, rel=1e-6)
        weights = losses.sample_mean_weights(blocks)
        assert sum(float(w.sum()) for w in weights) == pytest.approx(1, rel=1e-6)
        by_weights = sum(
            float(losses.loss_sum(table[b["input_ids"]], b["labels"], torch.tensor(w)[None])[0])
            for b, w in ((cloison.collate([block]), w) for block, w in zip(blocks, weights, strict=True))
        )
        assert by_weights == pytest.approx(wanted, rel=1e-6)


def test_fragments_share_the_weight_of_their_sample() -> None:
    whole = cloison.pack_samples([list(range(1, 10)), [1, 2, 3]], capacity=16, order="input")
    split = cloison.pack_samples([list(range(1, 10)), [1, 2, 3]], capacity=6, order="input", overflow="split")
    assert any((block.starts > 0).any() for block in split)
    with pytest.raises(InputError, match="segments are fragments of split samples"):
        losses.sample_mean_weights(split)
    targets = losses.targets_per_sample(split)
    assert losses.targets_per_sample(whole) == {0: 8, 1: 2}
    assert targets == {0: 7, 1: 2}, "a continuation's first token is no target"
    per_sample = {0: 0.0, 1: 0.0}
    for block, weights in zip(split, losses.sample_mean_weights(split, targets), strict=True):
        edges = np.cumsum(block.segments.seq_lengths)[:-1]
        for sample_id, part in zip(block.sample_ids.tolist(), np.split(weights, edges), strict=True):
            per_sample[sample_id] += float(part.sum())
    assert per_sample == pytest.approx({0: 0.5, 1: 0.5})
    halves = [losses.sample_mean_weights([block], targets, num_samples=2) for block in split]
    assert sum(float(w.sum()) for part in halves for w in part) == pytest.approx(1)


def test_weights_of_the_blocks_multiply_inside_their_sample() -> None:
    block = Block([1, 2, 3, 4], [IGNORE, 2, IGNORE, 4], Segments.from_lengths([[2, 2]]), [0, 1], loss_weights=[0, 2, 0, 1])
    assert losses.sample_mean_weights([block])[0].tolist() == [0, 1, 0, 0.5]


def test_weighted_token_mean_divides_by_the_weights() -> None:
    logits, labels = logits_for([[1.0, 2.0, 4.0]])
    weights = torch.tensor([[9.0, 1, 0, 3]])
    assert float(losses.token_mean(logits, labels, weights).detach()) == pytest.approx((1 + 0 + 12) / 4)


# ---------------------------------------------------------------------- wrong use


def test_wrong_use_raises() -> None:
    logits, labels = random_rows(1)
    with pytest.raises(InputError, match="without cutting the last logit"):
        losses.token_mean(logits[:, :-1], labels)
    with pytest.raises(InputError, match="or -100"):
        losses.token_mean(logits, labels.where(labels != IGNORE, -1))
    with pytest.raises(InputError, match="ranks must be at least 1"):
        losses.token_mean(logits, labels, ranks=0)
    with pytest.raises(InputError, match="weights must have the shape"):
        losses.loss_sum(logits, labels, torch.ones(3))
    with pytest.raises(BoundaryError, match=r"labels must be \[1, 5\]"):
        losses.segment_losses(logits, labels, Segments.from_lengths([[3, 2]]))
    with pytest.raises(InputError, match="targets_of_samples must have 2 entries"):
        losses.sample_mean(logits, labels, Segments.from_lengths([[12], [12]]), targets_of_samples=[3])


# ---------------------------------------------------------------------- reported faults


def test_case_NORM_01(cases: dict[str, dict[str, Any]]) -> None:
    case = cases["NORM-01"]
    batches = [logits_for([values]) for values in case["input"]["microbatch_token_losses"]]
    count = sum(float(losses.loss_sum(*batch)[1]) for batch in batches)
    total = sum(losses.token_mean(*batch, denominator=losses.step_denominator(count)) for batch in batches)
    assert float(total.detach()) == pytest.approx(case["expectation"]["loss"])
    naive = sum(losses.token_mean(*batch) for batch in batches) / len(batches)
    assert float(naive.detach()) == pytest.approx(case["expectation"]["wrong_if"]["mean_of_means"])


def test_case_NORM_02(cases: dict[str, dict[str, Any]]) -> None:
    case = cases["NORM-02"]
    every = [logits_for([[b["sum"] / b["tokens"]] * b["tokens"]]) for b in case["input"]["microbatches"]]
    size = case["input"]["accumulation"]
    steps = [every[i : i + size] for i in range(0, len(every), size)]
    found = []
    for step in steps:
        count = sum(float(losses.loss_sum(*batch)[1]) for batch in step)
        found.append(sum(float(losses.token_mean(*batch, denominator=count).detach()) for batch in step))
    assert found == pytest.approx(case["expectation"]["step_losses"])
    assert len(steps) == case["expectation"]["updates"]


def _row_of(case_samples: list[list[float]]) -> tuple[Any, Any, Segments]:
    """One packed row whose segments have these target losses."""
    pairs = [logits_for([values]) for values in case_samples]
    logits = torch.cat([pair[0] for pair in pairs], dim=1)
    labels = torch.cat([pair[1] for pair in pairs], dim=1)
    return logits, labels, Segments.from_lengths([[len(values) + 1 for values in case_samples]])


def test_case_NORM_04(cases: dict[str, dict[str, Any]]) -> None:
    case = cases["NORM-04"]
    logits, labels, seg = _row_of([[s["loss_each"]] * s["tokens"] for s in case["input"]["samples"]])
    expected = case["expectation"]
    assert float(losses.token_mean(logits, labels)) == pytest.approx(expected["token_mean"], abs=1e-6)
    assert float(losses.sample_mean(logits, labels, seg)) == pytest.approx(expected["sample_mean"])
    block = Block(np.ones(seg.num_tokens, int), labels[0].numpy(), seg, [0, 1])
    weights = losses.sample_mean_weights([block])[0]
    assert sorted(set(weights.tolist()) - {0.0}) == pytest.approx(expected["token_weights_for_sample_mean"], abs=1e-6)
    assert float(losses.loss_sum(logits, labels, torch.tensor(weights)[None])[0]) == pytest.approx(expected["sample_mean"])


def test_case_NORM_05(cases: dict[str, dict[str, Any]]) -> None:
    case = cases["NORM-05"]
    logits, labels, seg = _row_of(case["input"]["segments_token_losses"])
    assert float(losses.sample_mean(logits, labels, seg)) == pytest.approx(case["expectation"]["seq_mean_token_mean"])
    assert float(losses.token_mean(logits, labels)) == pytest.approx(case["expectation"]["token_mean"], abs=1e-6)
    as_one = Segments.from_lengths([[seg.num_tokens]])
    wrong = float(losses.sample_mean(logits, labels, as_one))
    assert wrong == pytest.approx(case["expectation"]["wrong_if"]["row_as_one_sequence"], abs=1e-6)


def test_case_NORM_07(cases: dict[str, dict[str, Any]]) -> None:
    case = cases["NORM-07"]
    full = case["input"]["microbatches"][1]
    batches = [
        (torch.zeros(1, 4, 2, requires_grad=True), torch.full((1, 4), IGNORE)),
        logits_for([[full["sum"] / full["tokens"]] * full["tokens"]]),
    ]
    count = sum(float(losses.loss_sum(*batch)[1]) for batch in batches)
    total = sum(losses.token_mean(*batch, denominator=count) for batch in batches)
    total.backward()
    assert float(total.detach()) == pytest.approx(case["expectation"]["loss"])
    assert all(torch.isfinite(batch[0].grad).all() for batch in batches)
    masked = losses.token_mean(*batches[0])
    [gradient] = torch.autograd.grad(masked, batches[0][0])
    assert float(masked) == case["expectation"]["all_masked_window"]["loss"]
    assert not gradient.any()


def test_case_NORM_08(cases: dict[str, dict[str, Any]]) -> None:
    case = cases["NORM-08"]
    values = [float(value) for value in case["input"]["token_losses"]]
    logits, labels = logits_for([[0.5 if np.isnan(value) else value for value in values]])
    logits = logits.detach()
    for index, (value, kept) in enumerate(zip(values, case["input"]["mask"], strict=True)):
        if np.isnan(value):
            logits[0, index] = float("nan")
        if not kept:
            labels[0, index + 1] = IGNORE
    assert float(losses.token_mean(logits, labels)) == pytest.approx(case["expectation"]["loss"])
    multiplied = torch.nn.functional.cross_entropy(logits[0, :-1], torch.ones(3, dtype=torch.long), reduction="none")
    assert torch.isnan((multiplied * torch.tensor(case["input"]["mask"])).sum())


def test_case_EVAL_01(cases: dict[str, dict[str, Any]]) -> None:
    case = cases["EVAL-01"]
    nll = case["input"]["token_nll"]

    def evaluated(rows: list[list[list[float]]]) -> float:
        pairs = [losses.loss_sum(*_row_of(row)[:2]) for row in rows]
        return float(sum(total for total, _ in pairs) / sum(count for _, count in pairs))

    ways = {
        "unpacked": [[sample] for sample in nll],
        "one pack": [nll],
        "two packs": [[nll[index] for index in pack] for pack in case["input"]["packs"]],
    }
    assert set(ways) == set(case["expectation"]["same_for"])
    for rows in ways.values():
        assert evaluated(rows) == pytest.approx(case["expectation"]["eval_loss"])


# ---------------------------------------------------------------------- ranks


def test_two_ranks_have_the_gradient_of_one(tmp_path: Path) -> None:
    script = Path(__file__).with_name("two_ranks_losses.py")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(world), str(tmp_path / f"meeting{world}"), str(tmp_path / out)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, world, out in ((0, 2, "0.json"), (1, 2, "1.json"), (0, 1, "alone.json"))
    ]
    for process in processes:
        _, error = process.communicate(timeout=200)
        assert process.returncode == 0, error
    wanted = json.loads((tmp_path / "alone.json").read_text())
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for kind in ("token_mean", "sample_mean"):
        for found in ranks:
            assert found[kind]["gradient"] == pytest.approx(wanted[kind]["gradient"], rel=1e-5, abs=1e-7), kind
        shares = [found[kind]["loss"] / 2 for found in ranks]  # each rank multiplied by the number of ranks
        assert sum(shares) == pytest.approx(wanted[kind]["loss"], rel=1e-6)
        naive = np.mean([found[kind]["local_mean"] for found in ranks])
        assert abs(naive - wanted[kind]["loss"]) > 1e-3, "the data must tell a mean of means from the mean"


# ---------------------------------------------------------------------- a real trainer


def test_the_loss_of_a_real_trainer_is_the_token_mean_of_each_step(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    rng = np.random.default_rng(0)
    samples = [cloison.Sample(rng.integers(3, 40, n)) for n in (9, 2, 3, 12, 2, 5, 4)]
    samples[4] = cloison.Sample(samples[4].input_ids, [IGNORE] * 2)  # a micro-batch without a target
    blocks = [block for sample in samples for block in cloison.pack_samples([sample], capacity=16)]
    with torch.no_grad():
        model.lm_head.weight.mul_(20)
        sums = [
            losses.loss_sum(model(**{k: v for k, v in batch.items() if k != "labels"}).logits, batch["labels"])
            for batch in (cloison.collate([block]) for block in blocks)
        ]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        per_device_train_batch_size=1,
        gradient_accumulation_steps=2,
        num_train_epochs=1,
        learning_rate=0.0,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        train_sampling_strategy="sequential",
    )
    assert arguments.remove_unused_columns
    trainer = transformers.Trainer(
        model,
        arguments,
        train_dataset=blocks,
        data_collator=cloison.collate,
        compute_loss_func=losses.compute_loss_func,
    )
    trainer.train()
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    windows = [sums[i : i + 2] for i in range(0, len(sums), 2)]
    wanted = [float(sum(total for total, _ in w) / sum(count for _, count in w)) for w in windows]
    assert len(logged) == 4, "the partial last window is applied"
    assert logged == pytest.approx(wanted, abs=1e-4)


# ---------------------------------------------------------------------- the kernel


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("piece", [1, 30, 10**6])
def test_cross_entropy_in_pieces_is_that_of_torch(dtype: Any, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from cloison import cross_entropy

    monkeypatch.setitem(cross_entropy._PIECE_ELEMENTS, "cpu", piece)
    generator = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(9, VOCABULARY, generator=generator)).to(dtype).requires_grad_()
    rows, targets = torch.tensor([0, 2, 3, 7]), torch.tensor([1, 10, 0, 4])
    factors = torch.tensor([1.0, -2.0, 0.0, 0.5])
    wanted = torch.nn.functional.cross_entropy(logits[rows].float(), targets, reduction="none")
    found = cross_entropy.chosen_cross_entropy(logits, rows, targets)
    assert torch.allclose(found, wanted, atol=1e-6)
    [his] = torch.autograd.grad((wanted * factors).sum(), logits)
    [mine] = torch.autograd.grad((found * factors).sum(), logits)
    assert mine.dtype == dtype
    assert torch.allclose(mine, his, atol=1e-6 if dtype == torch.float32 else 1e-2)
