from collections.abc import Iterator
from pathlib import Path
def campaign(scratch: Path, seed: int, runs: int) -> Iterator[str]:
    return iter(())
