"""Samples per second of the training step: fittrain against what else there is.

    python benchmarks/step.py [--models mlp,cnn] [--ways keras,one] [--rounds 5] [--seconds 2]

The processes of all ways are started first, warmed up, and stopped (SIGSTOP). A round then wakes
one way after the other, so that the machine's drift meets all alike; ratios are taken within a
round, and their medians are printed. Every process has one thread for operations. Two processes
that do not talk are the ceiling for two ranks: cores share caches, memory and clock.
"""

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import psutil
from _models import WORKLOADS

ONE_THREAD = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2", "OMP_NUM_THREADS": "1"}
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
MPIRUN = [str(Path(sys.executable).with_name("mpirun")), "--bind-to", "none", "-np", "2"]
START_SECONDS = 180


@dataclass(frozen=True)
class Way:
    """How one number is measured: its title, launcher, trainer, backend, processes at once."""

    title: str
    launcher: list[str]
    trainer: str
    backend: str
    at_once: int = 1


WAYS = {
    "keras": Way("Keras fit", [], "keras", "local"),
    "loop": Way("a loop in the graph, written by hand", [], "loop", "local"),
    "one": Way("fittrain, 1 rank", [], "fittrain", "local"),
    "unfused": Way("fittrain, 1 rank, Keras's own updates", [], "unfused", "local"),
    "apart": Way("fittrain, 2 processes that do not talk", [], "fittrain", "local", at_once=2),
    "horovod": Way("fittrain, 2 ranks, horovod", MPIRUN, "fittrain", "horovod"),
    "mpi": Way("fittrain, 2 ranks, mpi", MPIRUN, "fittrain", "mpi"),
}
Round = dict[str, float]
RATIOS: dict[str, Callable[[Round], float]] = {
    "1 rank against Keras fit": lambda r: r["one"] / r["keras"],
    "1 rank against the loop by hand": lambda r: r["one"] / r["loop"],
    "1 rank, Keras's own updates, against the loop by hand": lambda r: r["unfused"] / r["loop"],
    "fused updates against Keras's own": lambda r: r["one"] / r["unfused"],
    "2 ranks (horovod) against twice 1 rank": lambda r: r["horovod"] / (2 * r["one"]),
    "2 ranks (horovod) against 2 apart": lambda r: r["horovod"] / r["apart"],
    "2 ranks (mpi) against twice 1 rank": lambda r: r["mpi"] / (2 * r["one"]),
    "2 ranks (mpi) against 2 apart": lambda r: r["mpi"] / r["apart"],
}


@dataclass
class Running:
    """The started processes of one way, asleep between measurements."""

    way: Way
    model: str
    folder: Path
    seconds: float
    processes: list[subprocess.Popen] = field(default_factory=list)
    epochs: int = 0
    measured: int = 0

    def start(self) -> None:
        for number in range(self.way.at_once):
            place = self.folder / str(number)
            place.mkdir(parents=True)
            script = Path(__file__).with_name("_step_process.py")
            command = [sys.executable, str(script), self.model, self.way.trainer, self.way.backend]
            self.processes.append(
                subprocess.Popen(
                    [*self.way.launcher, *command, str(place)],
                    env={**os.environ, **ROOT, **ONE_THREAD, "TF_CPP_MIN_LOG_LEVEL": "2"},
                    stderr=(place / "errors").open("w"),
                )
            )
        ready = self._wait_for("ready", START_SECONDS)
        self.epochs = math.ceil(self.seconds / max(one["epoch_seconds"] for one in ready))
        self._each("suspend")

    def measure(self) -> float:
        """Samples per second, added up over the processes of this way."""
        self._each("resume")
        for place in self._places():
            (place / "go.part").write_text(str(self.epochs))
        for place in self._places():
            (place / "go.part").rename(place / f"go-{self.measured}")
        found = self._wait_for(f"result-{self.measured}", START_SECONDS)
        self._each("suspend")
        self.measured += 1
        return sum(one["samples_per_second"] for one in found)

    def end(self) -> None:
        self._each("resume")
        for place in self._places():
            (place / f"go-{self.measured}").write_text("0")
        for process in self.processes:
            for stop in (lambda: None, process.terminate, process.kill):
                stop()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(20)
                    break

    def _places(self) -> list[Path]:
        return [self.folder / str(number) for number in range(self.way.at_once)]

    def _each(self, what: str) -> None:
        for process in self.processes:
            with contextlib.suppress(psutil.Error):
                top = psutil.Process(process.pid)
                for one in [top, *top.children(recursive=True)]:
                    getattr(one, what)()

    def _wait_for(self, name: str, seconds: float) -> list[dict[str, float]]:
        paths = [place / name for place in self._places()]
        deadline = time.monotonic() + seconds
        while not all(path.exists() for path in paths):
            ended = any(process.poll() is not None for process in self.processes)
            if ended or time.monotonic() > deadline:
                errors = [(place / "errors").read_text()[-3000:] for place in self._places()]
                raise SystemExit(f"{self.model}, {self.way.title}: no {name}\n" + "\n".join(errors))
            time.sleep(0.005)
        return [json.loads(path.read_text()) for path in paths]


@contextlib.contextmanager
def started(model: str, ways: list[str], seconds: float) -> Iterator[dict[str, Running]]:
    """All ways of one model, ready and asleep."""
    running: dict[str, Running] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name in ways:
                running[name] = Running(WAYS[name], model, Path(folder, name), seconds)
                running[name].start()
            yield running
        finally:
            for one in running.values():
                one.end()


def measure(model: str, ways: list[str], rounds: int, seconds: float) -> list[Round]:
    found = []
    with started(model, ways, seconds) as running:
        for number in range(rounds):
            # Back and forth: what comes late in a round is not always the same.
            order = ways if number % 2 == 0 else ways[::-1]
            found.append({name: running[name].measure() for name in order})
            print(model, {name: round(found[-1][name]) for name in ways}, file=sys.stderr)
    return found


def print_tables(found: dict[str, list[Round]], ways: list[str]) -> None:
    titles = [WORKLOADS[model].title for model in found]
    rule = "|---" * (len(found) + 1) + "|"
    print("| samples/s, median |", " | ".join(titles), "|\n" + rule)
    for name in ways:
        rates = [f"{median(one[name] for one in rounds):,.0f}" for rounds in found.values()]
        print("|", WAYS[name].title, "|", " | ".join(rates), "|")
    print("\n| ratio, median of rounds (lowest to highest) |", " | ".join(titles), "|\n" + rule)
    for label, ratio in RATIOS.items():
        cells = []
        for rounds in found.values():
            with contextlib.suppress(KeyError):
                values = sorted(map(ratio, rounds))
                cells.append(f"{median(values):.2f} ({values[0]:.2f} to {values[-1]:.2f})")
        if len(cells) == len(found):
            print("|", label, "|", " | ".join(cells), "|")


def main() -> None:
    parser = argparse.ArgumentParser(description="Samples per second of the training step.")
    parser.add_argument(
        "--models", default="mlp,cnn,transformer,recommender", help=str([*WORKLOADS])
    )
    parser.add_argument("--ways", default=",".join(WAYS), help=str([*WAYS]))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    options = parser.parse_args()
    ways = options.ways.split(",")
    found = {
        model: measure(model, ways, options.rounds, options.seconds)
        for model in options.models.split(",")
    }
    print_tables(found, ways)


if __name__ == "__main__":
    main()
