"""One run of the benchmarks: what was measured, where, and the file that keeps it for the docs."""

import dataclasses
import json
import os
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from growth import Growth
from peers import Peer
from rows import Bar, Row

PACKAGES = ["streamguard-aio", "anyio", "trio", "uvloop", "google-adk", "asyncstdlib", "aiostream", "aioitertools"]


@dataclass(frozen=True)
class Machine:
    """Where it ran."""

    system: str
    processor: str
    cores: int
    python: str
    versions: dict[str, str]

    @classmethod
    def here(cls) -> Self:
        python = f"{platform.python_implementation()} {platform.python_version()}"
        system = f"{platform.system()} {platform.machine()}"
        return cls(system, _processor(), os.cpu_count() or 0, python, {name: version(name) for name in PACKAGES})

    @property
    def minor(self) -> str:
        """3.12, for example."""
        return ".".join(self.python.split()[1].split(".")[:2])

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        return f"{self.python}; {self.system}, {self.processor}, {self.cores} cores\n{versions}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()


@dataclass(frozen=True)
class Run:
    machine: Machine
    load: list[float]
    """How many processes wanted a processor, in the last minute, before and after."""
    rows: list[Row]
    imports: dict[str, float]
    peers: list[Peer]
    growth: list[Growth]

    def save(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")

    @classmethod
    def load_from(cls, path: Path) -> Self:
        kept: dict[str, Any] = json.loads(path.read_text())
        rows = [Row(**{**row, "bar": row["bar"] and Bar(**row["bar"])}) for row in kept["rows"]]
        growth = [Growth(**one) for one in kept["growth"]]
        peers = [Peer(**one) for one in kept["peers"]]
        return cls(Machine(**kept["machine"]), kept["load"], rows, kept["imports"], peers, growth)
