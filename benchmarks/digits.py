"""Throughput of the digits model: one rank against Keras's fit, two ranks against two of one.

    make bench                       (or: python benchmarks/digits.py)

Every round runs all ways one after the other, so that the machine's drift meets all alike; ratios
are taken within a round, and their medians are printed. Every process has one thread. Two processes
that do not talk are the ceiling for two ranks: cores share caches, memory and clock.
"""

import os
import subprocess
import sys
from pathlib import Path
from statistics import median

ROUNDS = 5
ONE_THREAD = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2", "OMP_NUM_THREADS": "1"}
MPIRUN = [str(Path(sys.executable).with_name("mpirun")), "--bind-to", "none", "-np", "2"]
KERAS, ONE, APART = "Keras fit", "fittrain, 1 rank", "fittrain, 2 processes apart"
HOROVOD, BY_HAND, MPI = (
    "fittrain, 2 ranks, horovod",
    "fittrain, 2 ranks, horovod, threads by hand",
    "fittrain, 2 ranks, mpi",
)
# Launcher, who trains, backend, environment, how many at once.
WAYS = {
    KERAS: ([], "keras", "local", ONE_THREAD, 1),
    ONE: ([], "fittrain", "local", ONE_THREAD, 1),
    APART: ([], "fittrain", "local", ONE_THREAD, 2),
    HOROVOD: (MPIRUN, "fittrain", "horovod", {}, 1),
    BY_HAND: (MPIRUN, "fittrain", "horovod", ONE_THREAD, 1),
    MPI: (MPIRUN, "fittrain", "mpi", {}, 1),
}
RATIOS = {
    "1 rank against Keras fit": lambda r: r[ONE] / r[KERAS],
    "2 ranks (horovod) against twice 1 rank": lambda r: r[HOROVOD] / (2 * r[ONE]),
    "2 ranks (horovod) against 2 processes apart": lambda r: r[HOROVOD] / r[APART],
    "2 ranks (horovod) against threads set by hand": lambda r: r[HOROVOD] / r[BY_HAND],
    "2 ranks (mpi) against twice 1 rank": lambda r: r[MPI] / (2 * r[ONE]),
    "2 ranks (mpi) against 2 processes apart": lambda r: r[MPI] / r[APART],
}
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def start(launcher: list[str], who: str, backend: str, environ: dict[str, str]) -> subprocess.Popen:
    return subprocess.Popen(
        [*launcher, sys.executable, "benchmarks/_throughput.py", who, backend],
        env={**os.environ, **ROOT, "TF_CPP_MIN_LOG_LEVEL": "2", **environ},
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        text=True,
    )


def measure(launcher, who, backend, environ, at_once) -> float:
    """Samples per second, added up over the processes that run at once."""
    total = 0.0
    for process in [start(launcher, who, backend, environ) for _ in range(at_once)]:
        printed, _ = process.communicate()
        line = next((one for one in printed.splitlines() if "samples_per_second" in one), None)
        if line is None:
            raise SystemExit(f"{who} on {backend} ended with {process.returncode}")
        total += float(line.split()[1])
    return total


def main() -> None:
    rounds = []
    for number in range(ROUNDS):
        rounds.append({name: measure(*way) for name, way in WAYS.items()})
        print(f"round {number + 1} of {ROUNDS}", {k: round(v) for k, v in rounds[-1].items()})
    print(f"\n| samples/s, median of {ROUNDS} | |\n|---|---|")
    for name in WAYS:
        print(f"| {name} | {median(r[name] for r in rounds):.0f} |")
    print("\n| ratio, median of rounds | |\n|---|---|")
    for label, ratio in RATIOS.items():
        print(f"| {label} | {median(map(ratio, rounds)):.2f} |")


if __name__ == "__main__":
    main()
