"""Exports read by the real libraries, and imports of what they write: each library in an environment of its own.

Run it by ``make foreign``, or ``make foreign ONLY="mds grain"`` for some of them. For each library it makes a virtual
environment under ``.foreign/`` that sees the project's own packages (torch, numpy, pyarrow), installs the library and what it
imports, packs a small data set, exports it, lets the library read it and compares block by block; then the library writes its
format and the import is compared with what was written. It ends with a line a library and status 1 where one differs. A
library that does not install is told as such, and fails nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path
from typing import Any

import numpy as np

import cloison
from cloison.segments import IGNORE

CAPACITY, EOS = 64, 2
HOME = Path(__file__).resolve().parents[1]

# The packages that the readers below import, without what the project has already (torch above all).
_GOOGLE = "google-api-core googleapis-common-protos google-cloud-storage google-cloud-core google-auth google-resumable-media"
PACKAGES = {
    "mds": "mosaicml-streaming==0.13.0 brotli zstd python-snappy cramjam pillow catalogue boto3 botocore jmespath s3transfer",
    "olmo-core": "ai2-olmo-core==3.0.0 cached-path dataclass-extensions omegaconf antlr4-python3-runtime boto3 botocore "
    f"jmespath s3transfer {_GOOGLE} google-crc32c proto-plus protobuf pyasn1 pyasn1-modules "
    "cryptography cffi pycparser requests urllib3 idna certifi charset-normalizer filelock bettermap rich six python-dateutil",
    "megatron": "megatron-core==0.16.1",
    "megatron-bridge": "megatron-bridge==0.3.1 megatron-core==0.16.1 six",
    "grain": "grain==0.2.18 array-record absl-py etils importlib-resources zipp cloudpickle protobuf",
    "datatrove": "datatrove==0.10.1 humanize loguru",
}

WITHOUT_PICTURES = """
import sys, types
from importlib.machinery import ModuleSpec
import transformers.image_utils  # which looks for torchvision once
# Wheels of torchvision fit one torch only.
for name in ("torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__spec__ = ModuleSpec(name, None)
sys.modules["torchvision.datasets"].VisionDataset = object
sys.modules["torchvision.transforms.functional"].to_tensor = None
sys.modules["torchvision"].transforms = sys.modules["torchvision.transforms"]
sys.modules["torchvision.transforms"].ToTensor = None
"""
"""What goes before an import of MosaicML's library, which imports torchvision for data sets of pictures."""

READERS = {
    "mds": WITHOUT_PICTURES
    + """
import numpy as np
from streaming import MDSWriter, StreamingDataset
blocks = []
for row in StreamingDataset(local=dest, shuffle=False, batch_size=1):
    numbers = row["sequence_id"]
    blocks.append([[row["tokens"][numbers == n].tolist(), (row["labels"][numbers == n] != -100).tolist()]
                   for n in range(numbers.max() + 1)])
with MDSWriter(columns={"tokens": "ndarray:int32", "sequence_id": "ndarray:int32"}, out=theirs, compression="zstd") as writer:
    for block in documents:
        writer.write({"tokens": np.array(sum(block, []), np.int32),
                      "sequence_id": np.repeat(np.arange(len(block)), [len(x) for x in block]).astype(np.int32)})
""",
    "olmo-core": """
import glob, hashlib, os
import numpy as np
from olmo_core.data.numpy_dataset import NumpyPackedFSLDataset
from olmo_core.data.utils import get_labels, write_document_indices
tokens = sorted(glob.glob(dest + "/tokens-*.npy"))
before = {name: os.path.getmtime(f"{dest}/work/dataset-common/{name}") for name in os.listdir(dest + "/work/dataset-common")}
data = NumpyPackedFSLDataset(*tokens, sequence_length=capacity, pad_token_id=0, eos_token_id=eos, vocab_size=70000,
    dtype=np.uint32, label_mask_paths=sorted(glob.glob(dest + "/label_mask-*.npy")),
    generate_doc_lengths=True, use_array_if_local=False)
data.work_dir = dest + "/work"
data.prepare()
after = {name: os.path.getmtime(f"{dest}/work/dataset-common/{name}") for name in os.listdir(dest + "/work/dataset-common")}
assert before == after, "the packing that was exported is used as it is"
blocks = []
for row in data:
    real = sum(1 for _ in row["input_ids"])
    labels = get_labels({"input_ids": row["input_ids"][None], "label_mask": row["label_mask"][None]})[0]
    block, start = [], 0
    # Their padding is further documents; the first ones are ours.
    for length in row["doc_lens"].tolist():
        ids = row["input_ids"][start:start + length].tolist()
        trained = [start + i > 0 and int(labels[start + i - 1]) != -100 for i in range(length)]
        block.append([ids, trained])
        start += length
    blocks.append(block)
# Their packing never leaves an instance without padding marks; drop the documents of padding: all of id 0.
blocks = [[one for one in block if any(one[0])] for block in blocks]
os.makedirs(theirs)
np.array([t for block in documents for ids in block for t in ids], np.uint32).tofile(theirs + "/part-0.npy")
from pathlib import Path
write_document_indices(Path(theirs + "/part-0.npy"), dtype=np.uint32, eos_token_id=eos)
""",
    "megatron": """
import os
import numpy as np, torch
from megatron.core.datasets.gpt_dataset import _get_ltor_masks_and_position_ids
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
data = IndexedDataset(dest + "/samples_text_document")
blocks = [[[data[i].tolist(), [False] + [True] * (len(data[i]) - 1)] for i in range(len(data))]]
assert data.document_indices.tolist() == list(range(len(data) + 1))
# What training makes of documents that are joined: it starts anew behind each end-of-document id, and nowhere else.
joined = torch.from_numpy(np.concatenate([data[i] for i in range(len(data))]).astype(np.int64))
masks = _get_ltor_masks_and_position_ids(joined, eos, True, True, True, False)
edges = np.cumsum([len(data[i]) for i in range(len(data))])
assert masks[2].tolist() == [place for i in range(len(data)) for place in range(len(data[i]))]
assert (masks[1].numpy() == 0).nonzero()[0].tolist() == (edges - 1).tolist()
os.makedirs(theirs)
builder = IndexedDatasetBuilder(theirs + "/x.bin", dtype=np.uint16)
for block in documents:
    for ids in block:
        builder.add_item(torch.tensor(ids)); builder.end_document()
builder.finalize(theirs + "/x.idx")
""",
    "megatron-bridge": """
import glob, pathlib, sys, types
from importlib.machinery import ModuleSpec
# Its packages import GPU kernels when they are imported; the data sets need none of them.
root = next(path for folder in sys.path if (path := pathlib.Path(folder) / "megatron" / "bridge").is_dir())
for name in ("", ".data", ".data.datasets", ".training", ".training.tokenizers", ".utils"):
    module = types.ModuleType("megatron.bridge" + name)
    module.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
    module.__spec__ = ModuleSpec(module.__name__, None, is_package=True)
    sys.modules[module.__name__] = module
import numpy as np
import pyarrow.parquet as pq
from megatron.bridge.data.datasets.sft import GPTSFTPackedDataset
# This release reads rows from .npy; later ones read the same rows from Parquet, each cell by as_py, as here.
rows = []
for file in sorted(glob.glob(dest + "/training_*-*.idx.parquet")):
    table = pq.read_table(file)
    rows += [{name: table.column(name)[i].as_py() for name in ("input_ids", "loss_mask", "seq_start_id")}
             for i in range(table.num_rows)]
array = np.empty(len(rows), object)
array[:] = rows
np.save("rows.npy", array)
class Tokenizer:
    eos_id = 0  # no token: this release takes no loss behind one
(metadata,) = glob.glob(dest + "/*_metadata.jsonl")
unused = {"prompt_template": "{input} {output}", "label_key": "output", "truncation_field": "input"}
data = GPTSFTPackedDataset("rows.npy", Tokenizer(), max_seq_length=capacity, pad_to_max_length=True, pad_cu_seqlens=True,
                           pack_metadata_file_path=metadata, **unused)
blocks, widths = [], set()
for i in range(len(data)):
    batch = data.collate_fn([data[i]])
    edges = batch["cu_seqlens"][0, : int(batch["cu_seqlens_argmin"][0])].tolist()
    # What the kernels are told of all rows holds for this one, its padding included.
    assert max(b - a for a, b in zip(edges, edges[1:])) <= int(batch["max_seqlen"][0])
    widths.add(len(edges))
    block = []
    for a, b in list(zip(edges, edges[1:]))[: len(rows[i]["seq_start_id"])]:
        tokens, labels, mask = (batch[name][0, a:b].tolist() for name in ("tokens", "labels", "loss_mask"))
        assert tokens[1:] == labels[:-1] and batch["position_ids"][0, a:b].tolist() == list(range(b - a))
        block.append([[tokens[0], *labels], [False, *map(bool, mask)]])
    blocks.append(block)
assert len(widths) == 1
""",
    "grain": """
import glob
import grain, numpy as np
import grain.experimental
data = grain.experimental.ParquetIterDataset(sorted(glob.glob(dest + "/*.parquet")))
blocks = []
for row in data.map(lambda row: {name: np.asarray(values, np.int32) for name, values in row.items()}):
    block = []
    for n in range(1, row["inputs_segmentation"].max() + 1):
        own = np.flatnonzero(row["inputs_segmentation"] == n)
        asked = row["targets_segmentation"][own] > 0
        ids = row["inputs"][own]
        assert (row["targets"][own][asked] == np.append(ids[1:], -1)[asked]).all()
        block.append([ids.tolist(), [False, *asked[:-1].tolist()]])
    blocks.append(block)
""",
    "datatrove": """
import os
from datatrove.io import get_datafolder
from datatrove.pipeline.tokens.tokenizer import TokenizedFile
blocks = None
os.makedirs(theirs)
file = TokenizedFile(get_datafolder(theirs), "00000.ds", save_index=True, save_loss_metadata=True, token_size=4)
import numpy as np
for block in documents:
    for ids in block:
        file.write(ids, np.array([0] + [1] * (len(ids) - 1)))
file.close()
""",
}
RECIPES = {"mds": ("mosaicml", "loaders")}
"""Pages of the documentation that run in the environment of a library, and nowhere else."""

IMPORTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "mds": ("mds", "", {}),
    "olmo-core": ("olmo-core", "", {"dtype": "uint32"}),
    "megatron": ("megatron", "/x", {}),
    "datatrove": ("datatrove", "", {}),
}


def environment(name: str, home: Path) -> Path | None:
    """Return the Python of the library's environment, made if there is none, or None when it does not install."""
    folder = home / name
    python = folder / "bin" / "python"
    if not (folder / ".ready").is_file():
        venv.create(folder, with_pip=True, clear=True)
        site = next((folder / "lib").glob("python*")) / "site-packages"
        (site / "project.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
        command = [
            str(python),
            "-m",
            "pip",
            "install",
            "-q",
            "--disable-pip-version-check",
            "--no-deps",
            *PACKAGES[name].split(),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            print(done.stderr[-2000:], file=sys.stderr)
            return None
        (folder / ".ready").touch()
    return python


def samples() -> list[list[int]]:
    """Return documents of awkward lengths, each with one end of text, at its end; no id is 0."""
    random = np.random.default_rng(11)
    return [
        [*random.integers(5, 60_000, n - 1).tolist(), EOS] for n in [2, 3, CAPACITY, CAPACITY - 1, *random.integers(2, 40, 200)]
    ]


def without_ends(all_samples: list[list[int]]) -> list[list[int]]:
    """Return the documents with no end of text in some, and one within others: boundaries that cannot be guessed."""
    out = []
    for number, ids in enumerate(all_samples):
        last = 7 if number % 3 == 0 else ids[-1]
        within = [EOS] if number % 5 == 0 and len(ids) > 4 else ids[2:3]
        out.append([*ids[:2], *within, *ids[3:-1], last] if len(ids) > 3 else [*ids[:-1], last])
    return out


def compare(name: str, python: Path, work: Path) -> list[str]:
    """Return what differs for one library: nothing where all is right."""
    given = samples() if name == "megatron" else without_ends(samples())
    rows = [{"input_ids": ids, "labels": [IGNORE] * (1 + i % 2) + ids[1 + i % 2 :]} for i, ids in enumerate(given)]
    (work / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    packed = cloison.pack([str(work / "a.jsonl")], work / "packed", cloison.PackSpec(capacity=CAPACITY, on_empty="drop"))
    wanted = [[[one.input_ids.tolist(), (one.labels != IGNORE).tolist()] for one in block.samples()] for block in packed]
    if name == "megatron":
        wanted = [[[ids, [False] + [True] * (len(ids) - 1)] for block in wanted for ids, _ in block]]
    dest, theirs = work / "dest", work / "theirs"
    if name != "datatrove":
        cloison.export(packed, dest, name, lose=["labels", "blocks"])
    documents = [samples()[i : i + 3] for i in range(0, 60, 3)]
    head = f"import json\ndest, theirs, capacity, eos = {str(dest)!r}, {str(theirs)!r}, {CAPACITY}, {EOS}\n"
    (work / "documents.json").write_text(json.dumps(documents))
    head += f"documents = json.load(open({str(work / 'documents.json')!r}))\n"
    tail = f"\njson.dump(blocks, open({str(work / 'seen.json')!r}, 'w'))\n"
    (work / "read.py").write_text(head + "if __name__ == '__main__':\n" + _indented(READERS[name] + tail))
    done = subprocess.run([str(python), str(work / "read.py")], capture_output=True, text=True, cwd=work)
    if done.returncode:
        return [f"the library raised: {done.stderr.strip()[-1500:]}"]
    wrong = []
    seen = json.loads((work / "seen.json").read_text())
    if seen is not None and seen != wanted:
        index = next((i for i, (a, b) in enumerate(zip(seen, wanted, strict=False)) if a != b), min(len(seen), len(wanted)))
        wrong.append(f"block {index} of {len(wanted)} (the library has {len(seen)}) differs: {seen[index : index + 1]}")
    if name in IMPORTS:
        format, suffix, options = IMPORTS[name]
        done_import = cloison.import_tokens(str(theirs) + suffix, work / "in", format, **options)  # type: ignore[arg-type]
        again = cloison.pack([str(work / "in")], work / "again", cloison.PackSpec(capacity=CAPACITY))
        found = {}
        for block in again:
            for number, one in zip(block.sample_ids.tolist(), block.samples(), strict=True):
                found[number] = one.input_ids.tolist()
        flat = [ids for block in documents for ids in block]
        if [found.get(number) for number in range(len(flat))] != flat or done_import.samples != len(flat):
            wrong.append("what the library wrote does not come in as it was")
    return wrong


def run_recipe(name: str, python: Path | str, folder: Path, before: str = "", until: str = "\0") -> str:
    """Run the Python of a recipe in ``folder``, up to the words ``until``, and return what it wrote to standard error where it
    failed, else ""."""
    text = (HOME / "docs" / "recipes" / f"{name}.md").read_text(encoding="utf-8").partition(until)[0]
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    (folder / "recipe.py").write_text("\n".join([before, *blocks]), encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(HOME / "src")}
    ran = subprocess.run([str(python), "recipe.py"], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return ran.stderr or "it failed" if ran.returncode else ""


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" if line.strip() else "\n" for line in text.splitlines())


def main() -> int:
    """Run the campaign and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"libraries ({', '.join(PACKAGES)})")
    parser.add_argument("--home", type=Path, default=Path(".foreign"), help="where the environments are")
    args = parser.parse_args()
    status = 0
    for name in args.names or PACKAGES:
        python = environment(name, args.home.absolute())
        if python is None:
            print(f"{name:16}not installed", flush=True)
            continue
        with tempfile.TemporaryDirectory(prefix="cloison-foreign-") as work:
            wrong = compare(name, python, Path(work))
            for recipe in RECIPES.get(name, ()):
                (Path(work) / recipe).mkdir()
                wrong += filter(None, [run_recipe(recipe, python, Path(work) / recipe, WITHOUT_PICTURES)])
        print(f"{name:16}{'right' if not wrong else 'WRONG'}: {PACKAGES[name].split()[0]}", flush=True)
        for line in wrong:
            print(f"  {line}")
        status |= bool(wrong)
    return status


if __name__ == "__main__":
    sys.exit(main())
