"""The main job on an S3 server on loopback, by the real client: the same bytes, also after kills, and a loader over it.

    python tests/campaign_s3.py [--kills 4] [--seed 0]

Run it by ``make s3``. It makes an environment under ``.foreign/s3`` that sees the project's own packages, installs s3fs and the
moto server (some 150 MB), and runs itself there. Exit status 1 when anything is not as it should be.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.packing.corpus import chats, write_lines

PACKAGES = ("s3fs", "moto[s3]==5.2.5", "flask", "flask-cors")
CAPACITY, SEGMENTS = 1 << 22, 8


def environment(home: Path) -> Path:
    """Return the Python of the environment, made if there is none."""
    folder = home / "s3"
    python = folder / "bin" / "python"
    if not (folder / ".ready").is_file():
        import fsspec

        venv.create(folder, with_pip=True, clear=True)
        command = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", f"fsspec=={fsspec.__version__}"]
        subprocess.run([*command, *PACKAGES], check=True)
        site = next((folder / "lib").glob("python*")) / "site-packages"
        ours = Path(__file__).resolve().parents[1] / "src"
        (site / "zz_project.pth").write_text(f"{ours}\n{sysconfig.get_path('purelib')}\n")  # what is installed here comes first
        (folder / ".ready").touch()
    return python


def tree(folder: Path) -> dict[str, str]:
    """Return the files under ``folder`` with their hashes."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


class Bucket:
    """A bucket of the server, as its own client sees it."""

    def __init__(self, client: Any) -> None:
        self.client = client
        client.create_bucket(Bucket="bucket")

    def names(self) -> list[str]:
        """Return the keys in it."""
        return list(self.states(""))

    def states(self, end: str) -> dict[str, Any]:
        """Return when each object whose key ends so was last put."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket="bucket")
        return {
            one["Key"]: one["LastModified"] for page in pages for one in page.get("Contents", []) if one["Key"].endswith(end)
        }

    def hashes(self, folder: str) -> dict[str, str]:
        """Return what a run made below ``folder``."""
        kept = [name for name in self.names() if name.startswith(f"{folder}/") and not name.endswith("/.hashes.json")]
        bodies = {name: self.client.get_object(Bucket="bucket", Key=name)["Body"].read() for name in kept}
        return {name[len(folder) + 1 :]: hashlib.sha256(body).hexdigest() for name, body in bodies.items()}


def command(folder: str, workers: int) -> list[str]:
    """Return the command line of the job."""
    import cloison

    tokenizer = Path(cloison.__file__).parent / "story" / "tokenizer"
    words = ["pack", "s3://bucket/in/*.jsonl", "--out", f"s3://bucket/{folder}/out", "--workers", str(workers)]
    words += ["--capacity", str(CAPACITY), "--max-segments", str(SEGMENTS), "--tokenizer", str(tokenizer)]
    return [sys.executable, "-m", "cloison.cli", *words]


def campaign(bucket: Bucket, root: Path, kills: int, seed: int) -> list[str]:
    """Return what is wrong."""
    import cloison

    wrong = []
    source = root / "in"
    source.mkdir()
    for number in range(8):
        path = write_lines(source / f"part-{number}.jsonl", chats(40, number))
        bucket.client.upload_file(str(path), "bucket", f"in/{path.name}")
    tokenizer = str(Path(cloison.__file__).parent / "story" / "tokenizer")
    here = cloison.pack(
        str(source), root / "made" / "out", cloison.PackSpec(CAPACITY, max_segments=SEGMENTS), tokenizer=tokenizer
    )
    expected = tree(root / "made")
    for workers in (1, 2):
        folder = f"run-{workers}"
        subprocess.run(command(folder, workers), check=True, stdout=subprocess.DEVNULL)
        wrong += _differing(f"{workers} workers", bucket.hashes(folder), expected)
    random = np.random.default_rng(seed)
    hit = 0
    while hit < kills:
        process = subprocess.Popen(command("killed", 2), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wanted = len(_recorded(bucket)) + int(random.integers(1, 5))
        while process.poll() is None and len(_recorded(bucket)) < wanted:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        if process.wait() != -signal.SIGKILL:
            break  # it came to its end
        hit += 1
    before = {name: state for name, state in bucket.states(".parquet").items() if name.startswith("killed/")}
    recorded = {f"killed/out/{Path(name).name.removesuffix('.json')}" for name in _recorded(bucket)}
    subprocess.run(command("killed", 2), check=True, stdout=subprocess.DEVNULL)
    wrong += _differing(f"after {hit} kills", bucket.hashes("killed"), expected)
    after = bucket.states(".parquet")
    wrong += [f"{name} was made again" for name in before if name in recorded and after[name] != before[name]]
    there = cloison.open("s3://bucket/killed/out")
    there.verify()
    wrong += [] if there.manifest == here.manifest else ["another manifest"]
    wrong += [] if cloison.check("s3://bucket/killed/out").ok else ["check finds faults"]
    loaders = [cloison.loader(packed, list, blocks_per_step=3, seed=1) for packed in (here, there)]
    for ours, theirs in zip(*loaders, strict=True):
        if [block.input_ids.tolist() for block in ours] != [block.input_ids.tolist() for block in theirs]:
            wrong.append("a loader gives other batches")
    wrong += _in_a_fork(there)
    print(f"{hit} kills hit; {len(recorded)} shards of {len(here.manifest.shards)} were finished before the last run")
    return wrong


def _recorded(bucket: Bucket) -> list[str]:
    return [name for name in bucket.names() if name.startswith("killed/out/.work/blocks-")]


def _differing(what: str, found: Mapping[str, str], expected: Mapping[str, str]) -> list[str]:
    differ = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
    return [f"{what}: {', '.join(differ)} differ"] if differ else []


def _in_a_fork(packed: Any) -> list[str]:
    """Read a block in a process that was forked from one that has read: as the workers of a DataLoader do."""
    expected = packed[0].input_ids.tolist()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(int(packed[len(packed) - 1].input_ids.size == 0 or packed[0].input_ids.tolist() != expected))
    return [] if os.waitpid(child, 0)[1] == 0 else ["a forked process cannot read"]


def main() -> int:
    """Run the campaign and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--home", type=Path, default=Path(".foreign"), help="where the environment is")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.inside:
        python = environment(args.home.absolute())
        words = [__file__, "--inside", "--kills", str(args.kills), "--seed", str(args.seed)]
        return subprocess.run([str(python), *words], check=False).returncode
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    os.environ |= {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ["AWS_ENDPOINT_URL"] = f"http://{host}:{port}"
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cloison-s3-") as scratch:
        os.environ["TMPDIR"] = tempfile.tempdir = scratch
        wrong = campaign(Bucket(boto3.client("s3")), Path(scratch), args.kills, args.seed)
    server.stop()
    for line in wrong:
        print(f"WRONG: {line}")
    print(f"{'nothing is wrong' if not wrong else f'{len(wrong)} faults'}; took {time.monotonic() - began:.0f} s")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
