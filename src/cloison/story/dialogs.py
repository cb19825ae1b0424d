"""The samples of the story: questions about functions of the standard library, and how their docstrings start."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cloison.samples import Sample
from cloison.segments import IGNORE
from cloison.story.configuration import Configuration
from cloison.story.corpus import functions

__all__ = ["TOKENIZER", "Dialogs", "dialogs"]

TOKENIZER = Path(__file__).parent / "tokenizer"


@dataclass(frozen=True)
class Dialogs:
    """What the story trains and evaluates on.

    Attributes:
        trained: for each function its samples, one a phrasing.
        held_out: for each function the sample with the phrasing that is not trained.
    """

    trained: tuple[tuple[Sample, ...], ...]
    held_out: tuple[Sample, ...]

    @property
    def everything(self) -> list[Sample]:
        """All trained samples, function by function."""
        return [sample for group in self.trained for sample in group]

    @property
    def vocabulary(self) -> int:
        """One more than the highest id."""
        return 1 + max(int(sample.input_ids.max()) for sample in [*self.everything, *self.held_out])

    def save(self, path: Path) -> None:
        """Write them to ``path`` as JSON."""
        groups = [[*group, held] for group, held in zip(self.trained, self.held_out, strict=True)]
        plain = [[[sample.input_ids.tolist(), sample.labels.tolist()] for sample in group] for group in groups]
        path.write_text(json.dumps(plain), encoding="utf-8")

    @staticmethod
    def load(path: Path) -> Dialogs:
        """Read what `save` wrote."""
        plain = json.loads(path.read_text(encoding="utf-8"))
        return _dialogs([[Sample(ids, labels) for ids, labels in group] for group in plain])


def dialogs(configuration: Configuration, *, compact: bool = True) -> Dialogs:
    """Return the samples of ``configuration``: questions, and the start of the docstring as the answer that is trained.

    With ``compact`` the ids that occur are numbered anew from 0; without it they are the tokenizer's.

    Cost: the whole standard library is parsed, which takes seconds.
    """
    found: dict[str, str] = {}
    for module, name, doc, _ in functions():
        answer = " ".join(doc.split())[: configuration.answer_characters].strip()
        if len(answer) >= 20 and not name.rsplit(".", 1)[-1].startswith("_"):
            found.setdefault(f"{module}.{name}", answer)
    names = list(found)
    picked = [names[int(index * len(names) / configuration.functions)] for index in range(configuration.functions)]

    questions = [*configuration.phrasings, configuration.held_out]
    asked = [(question.format(name), found[name]) for name in picked for question in questions]
    samples = _renumbered(_encoded(asked)) if compact else _encoded(asked)
    return _dialogs([samples[start : start + len(questions)] for start in range(0, len(samples), len(questions))])


def _dialogs(groups: Sequence[Sequence[Sample]]) -> Dialogs:
    return Dialogs(tuple(tuple(group[:-1]) for group in groups), tuple(group[-1] for group in groups))


def _encoded(asked: Sequence[tuple[str, str]]) -> list[Sample]:
    from cloison.spec import PackSpec
    from cloison.text.encoder import Encoded, Encoder
    from cloison.text.targets import labels

    records = [{"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]} for q, a in asked]
    encoder = Encoder(str(TOKENIZER), PackSpec(capacity=1))
    try:
        done = encoder.encode_batch(records)
    finally:
        encoder.close()
    out = []
    for record in done:
        if not isinstance(record, Encoded):
            raise record
        out.append(Sample(record.input_ids, *labels(record.input_ids, record.spans, record.shape, "assistant")))
    return out


def _renumbered(samples: Sequence[Sample]) -> list[Sample]:
    """Give the ids that occur the numbers 0, 1, ...: a small vocabulary, so that a small model's time goes to its layers."""
    used = np.unique(np.concatenate([sample.input_ids for sample in samples]))
    return [
        Sample(
            np.searchsorted(used, s.input_ids).astype(np.int32),
            np.where(s.labels == IGNORE, IGNORE, np.searchsorted(used, s.labels)).astype(np.int32),
        )
        for s in samples
    ]
