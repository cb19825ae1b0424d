"""Reported faults of running models on packed rows, each worked through a model."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from cloison.packing.memory import pack_samples  # noqa: E402
from cloison.proof.blocks import block_of, bounds, changed  # noqa: E402
from cloison.proof.comparing import token_losses  # noqa: E402
from cloison.proof.isolation import influence, moves, scale_of  # noqa: E402
from cloison.proof.run import subject  # noqa: E402
from cloison.proof.signals import flat_segments, signal  # noqa: E402
from cloison.proof.tiny import tiny_model  # noqa: E402
from cloison.proof.verify import verify  # noqa: E402
from tests.proof.mutants_model import attention, both_ways, plain_causal  # noqa: E402
from tests.proof.toy import CausalConv, Recurrence, flat, make, starts_of  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def ids_of(samples):
    return np.concatenate([np.asarray(sample) for sample in samples])


def test_case_XATT_01(cases):
    case = cases["XATT-01"]
    samples = case["input"]["samples"]
    block = block_of([len(sample) for sample in samples], ids_of(samples))
    segments = flat_segments([block])
    assert segments.segment_ids()[0].tolist() == case["expectation"]["segment_ids"]
    assert segments.dense_mask()[0, 0].astype(int).tolist() == case["expectation"]["allowed"]
    other = block_of([3, 2], ids_of([[59, 58, 57], samples[1]]))
    for mask, still in ((None, True), (plain_causal, False)):
        model = make() if mask is None else make(attention=attention(mask=mask))
        run = subject(model, flat)
        with torch.no_grad():
            packed, moved = run.run([block]).logits, run.run([other]).logits
            alone = [run.run_alone(block_of([len(sample)], sample)).logits for sample in samples]
        assert torch.equal(packed[3:], moved[3:]) is still
        together = token_losses(packed, [block]).sum()
        apart = sum(token_losses(logits, [block_of([len(s)], s)]).sum() for logits, s in zip(alone, samples, strict=True))
        assert torch.isclose(together, apart, rtol=1e-5).item() is still


def test_case_XATT_02(cases):
    case = cases["XATT-02"]["input"]
    model, _ = tiny_model("opt")  # its attention is causal only: it builds its mask without position_ids
    blocks = [block_of(case["lengths"], np.arange(10, 10 + sum(case["lengths"])))]
    batch = signal("positions")(blocks)
    assert batch["position_ids"][0].tolist() == case["position_ids"]
    report = verify(model, blocks, collate=signal("positions"))
    assert report["isolation"].status == "leak"
    assert 'kernel="mask"' in next(found.fix for found in report.findings if found.kind == "leak")
    assert verify(model, blocks, collate=signal("mask4d"))["isolation"].status == "exact"


def test_case_XATT_11(cases):
    case = cases["XATT-11"]
    blocks = [block_of(case["input"]["lengths"], np.arange(10, 13))]
    allowed = flat_segments(blocks).dense_mask(causal=False)[0, 0]
    assert allowed.astype(int).tolist() == case["expectation"]["allowed"]
    model = make(attention=attention(mask=both_ways))
    assert not verify(model, collate=flat, fix=False).ok
    report = verify(model, collate=flat, bidirectional=True, fix=False)
    assert report.ok
    assert report["look-ahead"].status == "right"


def test_case_XATT_12(cases):
    case = cases["XATT-12"]["input"]
    document = [token + 10 for token in case["doc"]]
    block = block_of([len(document)] * (1 + case["copies_after_first_in_pack"]), document * 4)
    model, _ = tiny_model("llama")
    for name, equal in (("positions", True), ("none", False)):
        with torch.no_grad():
            losses = token_losses(subject(model, signal(name)).run([block]).logits, [block]).reshape(4, -1)
        gap = (losses - losses[0]).abs().max()
        assert (gap < 1e-4).item() is equal, gap


def run_mixer(mixer, docs):
    ids = torch.tensor([np.repeat(np.arange(1, len(docs) + 1), [len(doc) for doc in docs])])
    x = torch.tensor(ids_of(docs), dtype=torch.float32)[None, :, None].expand(-1, -1, 16)
    with torch.no_grad():
        return mixer(x, ids)[0, :, 0]


def halving(reset):
    """h = 0.5 h + x"""
    mixer = Recurrence(reset=reset)
    mixer.decay = 0.5
    mixer.inner.weight.data.copy_(torch.eye(16))
    mixer.inner.bias.data.zero_()
    return mixer


def test_case_SSM_01(cases):
    case = cases["SSM-01"]
    docs = case["input"]["docs"]
    assert run_mixer(halving(starts_of), docs).tolist() == case["expectation"]["h"]
    carried = halving(lambda ids: torch.zeros_like(ids, dtype=torch.bool))
    assert run_mixer(carried, docs).tolist() == case["expectation"]["wrong_if"]["state_carried"]
    report = verify(make(extra=lambda: Recurrence(reset=lambda ids: ids < 0)), collate=flat, fix=False)
    assert report["where"].evidence["nature"] == "recurrence"


def summing(reach, **how):
    """The sum of a token and the ``reach`` before it."""
    mixer = CausalConv(**how)
    mixer.weight.data[reach + 1 :] = 0
    return mixer


def test_case_SSM_02(cases):
    case = cases["SSM-02"]
    docs = case["input"]["docs"]
    assert run_mixer(summing(2), docs).tolist() == case["expectation"]["y"]
    over = summing(2, same=lambda ids, past: torch.ones_like(ids, dtype=torch.bool))
    assert run_mixer(over, docs).tolist() == case["expectation"]["wrong_if"]["no_boundary"]


def test_case_SSM_05(cases):
    case = cases["SSM-05"]
    assert run_mixer(summing(3), case["input"]["docs"]).tolist() == case["expectation"]["y"]


def test_case_SSM_04(cases):
    """Offsets and a mask that disagree: an all-ones mask beside positions hides the boundaries, and verify says so."""
    case = cases["SSM-04"]
    lengths = np.diff(case["input"]["cu_seqlens"]).tolist()
    assert lengths == case["expectation"]["segments_used"]
    blocks = [block_of(lengths, np.arange(10, 15))]
    model, _ = tiny_model("llama")
    batch = signal("positions-ones")(blocks)
    assert batch["attention_mask"][0].tolist() == case["input"]["attention_mask"]
    assert verify(model, blocks, collate=signal("positions-ones"), fix=False)["isolation"].status == "leak"


def test_case_POS_04(cases):
    case = cases["POS-04"]
    lengths, table = case["input"]["lengths"], case["input"]["max_position"]
    model, _ = tiny_model("gpt2", n_positions=table)
    blocks = [block_of(lengths, np.arange(10, 10 + sum(lengths)))]
    batch = signal("positions")(blocks)
    assert int(batch["position_ids"].max()) == case["expectation"]["max_used_position"]
    assert verify(model, blocks, collate=signal("positions")).ok
    run_on = {"position_ids": torch.arange(sum(lengths))[None]}
    assert int(run_on["position_ids"].max()) == case["expectation"]["wrong_if"]["no_reset_max"]
    report = verify(model, blocks, collate=lambda parts: signal("mask4d")(parts) | run_on)
    assert report["isolation"].status == "error"
    assert not report.ok


def test_case_POS_05(cases):
    case = cases["POS-05"]
    lengths, window = case["input"]["lengths"], case["input"]["original_window"]
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
    model, _ = tiny_model("llama", rope_parameters=rope, max_position_embeddings=window)
    blocks = [block_of(lengths, np.arange(10, 10 + sum(lengths)))]
    assert int(signal("positions")(blocks)["position_ids"].max()) + 1 == case["expectation"]["length_used_for_scaling"]
    assert verify(model, blocks, collate=signal("positions")).ok
    run_on = torch.arange(sum(lengths))[None]
    assert run_on.shape[1] == case["expectation"]["wrong_if"]["pack_length"]
    report = verify(model, blocks, collate=lambda parts: signal("mask4d")(parts) | {"position_ids": run_on}, fix=False)
    assert report["equality"].status == "mismatch"
    straddling = [block_of([6, 12], np.arange(10, 28))]
    report = verify(model, straddling, collate=signal("positions"), fix=False)
    assert report["isolation"].status == "exact"
    assert report["equality"].evidence["cause"] == "longest_position"


def test_case_POS_07(cases):
    samples = cases["POS-07"]["input"]["samples"]
    block = block_of([3, 3], ids_of(samples))
    model, _ = tiny_model("llama")
    made = signal("mask4d")
    for reset in (True, False):
        batch = made([block]) | ({} if reset else {"position_ids": torch.arange(6)[None]})
        with torch.no_grad():
            logits = subject(model, made).run_batch(batch, [block]).logits
        assert torch.allclose(logits[:3], logits[3:], atol=1e-4)
    report = verify(model, [block], collate=lambda parts: made(parts) | {"position_ids": torch.arange(6)[None]})
    assert report["positions"].status == "right"
    assert report.ok


# ---------------------------------------------------------------------- the pieces


@pytest.mark.parametrize("count", [2, 3, 5, 8, 13])
def test_codes_find_any_single_edge_and_the_matrix_locates_it(count):
    """A made-up model in which exactly one segment reads exactly one other."""
    rng = np.random.default_rng(count)
    blocks = [block_of([3] * count, rng.integers(4, 60, 3 * count))]
    ids = np.arange(4, 60)
    for source, destination in rng.permutation([(s, d) for s in range(count) for d in range(count) if s != d])[:6].tolist():

        def run(parts, source=source, destination=destination):
            tokens = torch.from_numpy(parts[0].input_ids.astype(np.float32))
            out = torch.stack([tokens, tokens**2], 1)
            place = bounds(parts)
            out[place[destination]] += 1e-3 * (tokens[place[source]] ** 1.5).sum()
            return out

        found = influence(run, blocks, ids)
        assert np.argwhere(found.cells).tolist() == [[source, destination]]
        assert found.worst[:2] == (source, destination)
        assert not influence(lambda parts: torch.from_numpy(parts[0].input_ids[:, None] * 1.0), blocks, ids).cells.any()


def test_changed_blocks_keep_shapes_and_change_every_token_of_the_chosen_only():
    blocks = pack_samples([range(10, 15), range(20, 23), range(30, 37)], capacity=20, order="input")
    ids = np.arange(4, 60)
    made = changed(blocks, {1}, ids, 0)
    before, after = blocks[0].input_ids, made[0].input_ids
    places = bounds(blocks)
    assert (before[places[1]] != after[places[1]]).all()
    assert np.array_equal(np.delete(before, range(places[1].start, places[1].stop)), np.delete(after, range(5, 8)))
    assert made[0].segments == blocks[0].segments
    assert np.array_equal(made[0].labels[6:8], after[6:8])
    base = torch.from_numpy(before[:, None] * 1.0)
    assert (moves(base, torch.from_numpy(after[:, None] * 1.0), places, scale_of(base)) > 0).tolist() == [False, True, False]
