"""Throughput of the digits model: one rank against Keras's fit, two ranks against twice one.

    make bench                       (or: python benchmarks/digits.py)

Every round runs all ways one after the other, so that the machine's drift meets all alike; ratios
are taken within a round, and their medians are printed. Two ranks get a core each; the single rank
they are compared with gets one thread.
"""

import os
import subprocess
import sys
from pathlib import Path
from statistics import median

ROUNDS = 5
ONE_THREAD = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2", "OMP_NUM_THREADS": "1"}
MPIRUN = [str(Path(sys.executable).with_name("mpirun")), "--bind-to", "none", "-np", "2"]
WAYS = {
    "Keras fit, 1 thread": ([], "keras", "local", ONE_THREAD),
    "fittrain, 1 rank, 1 thread": ([], "fittrain", "local", ONE_THREAD),
    "fittrain, 2 ranks, horovod": (MPIRUN, "fittrain", "horovod", {}),
    "fittrain, 2 ranks, horovod, threads by hand": (MPIRUN, "fittrain", "horovod", ONE_THREAD),
    "fittrain, 2 ranks, mpi": (MPIRUN, "fittrain", "mpi", {}),
}
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def measure(launcher: list[str], who: str, backend: str, environ: dict[str, str]) -> float:
    command = [*launcher, sys.executable, "benchmarks/_throughput.py", who, backend]
    done = subprocess.run(
        command,
        env={**os.environ, **ROOT, "TF_CPP_MIN_LOG_LEVEL": "2", **environ},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    line = next(line for line in done.stdout.splitlines() if "samples_per_second" in line)
    return float(line.split()[1])


def main() -> None:
    rounds = []
    for number in range(ROUNDS):
        rounds.append({name: measure(*way) for name, way in WAYS.items()})
        print(f"round {number + 1} of {ROUNDS}", {k: round(v) for k, v in rounds[-1].items()})
    keras_fit, one, horovod, by_hand, mpi = WAYS
    print(f"\n{'':44}samples/s (median of {ROUNDS})")
    for name in WAYS:
        print(f"{name:44}{median(r[name] for r in rounds):10.0f}")
    print(f"\n{'ratio, median of rounds':52}")
    for label, ratio in {
        "1 rank against Keras fit": lambda r: r[one] / r[keras_fit],
        "2 ranks (horovod) against twice 1 rank": lambda r: r[horovod] / (2 * r[one]),
        "2 ranks (horovod) against threads set by hand": lambda r: r[horovod] / r[by_hand],
        "2 ranks (mpi) against twice 1 rank": lambda r: r[mpi] / (2 * r[one]),
    }.items():
        print(f"{label:48}{median(map(ratio, rounds)):6.2f}")


if __name__ == "__main__":
    main()
