"""What a single call costs: an update of 200 small layers, and `train_on_batch`.

    python benchmarks/single_calls.py [--rounds 7]

Every process has one thread for operations. A round measures one rank and then two, and ratios are
taken within it. The 200 layers of 4 units have 400 gradients, which travel as one: their update on
two ranks should last less than 3 times that on one. `train_on_batch` is compared with Keras's own
for a small model; what it takes more is the price of a call, whatever the model.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

ONE_THREAD = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2", "OMP_NUM_THREADS": "1"}
ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
MPIRUN = [str(Path(sys.executable).with_name("mpirun")), "--bind-to", "none", "-np", "2"]
CALLS, UPDATES = 200, 200


def seconds_of(call, times: int) -> float:
    started = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - started) / times


def measure() -> dict[str, float]:
    """Seconds of an update of many layers, and of a call with a small model, on these ranks."""
    import fittrain
    import keras
    import numpy as np

    def small() -> keras.Model:
        layers = [keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
        return keras.Sequential([keras.Input((20,)), *layers])

    def deep() -> keras.Model:
        return keras.Sequential([keras.Input((4,)), *(keras.layers.Dense(4) for _ in range(200))])

    fittrain.init("mpi" if "OMPI_COMM_WORLD_SIZE" in os.environ else "local", seed=1)
    x, y = np.ones((16 * UPDATES, 4), "float32"), np.ones((16 * UPDATES, 4), "float32")
    many = fittrain.Trainer(deep, optimizer="sgd", loss="mse")
    epoch = {"batch_size": 16, "verbose": 0}
    many.fit(x, y, epochs=2, **epoch)
    found = {"200 layers": seconds_of(lambda: many.fit(x, y, **epoch), 1) / UPDATES}

    rows, targets = np.ones((64, 20), "float32"), np.ones((64, 10), "float32")
    trainer = fittrain.Trainer(small, optimizer="adam", loss="mse", metrics=["mae"])
    calls = {"train_on_batch": lambda: trainer.train_on_batch(rows, targets)}
    if fittrain.size() < 2:
        plain = small()
        plain.compile(optimizer="adam", loss="mse", metrics=["mae"])
        calls["Keras's train_on_batch"] = lambda: plain.train_on_batch(rows, targets)
    for name, call in calls.items():
        seconds_of(call, 20)
        found[name] = seconds_of(call, CALLS)
    return found


def in_processes(launcher: list[str]) -> dict[str, float]:
    command = [*launcher, sys.executable, __file__, "--measure"]
    environ = {**os.environ, **ROOT, **ONE_THREAD, "TF_CPP_MIN_LOG_LEVEL": "2"}
    job = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    ranks = [json.loads(line) for line in job.stdout.splitlines() if line.startswith("{")]
    return {name: max(rank[name] for rank in ranks) for name in ranks[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description="What a single call costs.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print("\n" + json.dumps(measure()), flush=True)
        return
    rounds = [(in_processes([]), in_processes(MPIRUN)) for _ in range(options.rounds)]
    one, two = ({name: median(r[i][name] for r in rounds) for name in rounds[0][i]} for i in (0, 1))
    print("| milliseconds, median | Keras | 1 rank | 2 ranks (mpi) |\n|---|---|---|---|")
    print(f"| update of 200 layers | | {one['200 layers'] * 1e3:.2f} ", end="")
    print(f"| {two['200 layers'] * 1e3:.2f} |")
    keras_call = one["Keras's train_on_batch"]
    print(f"| train_on_batch | {keras_call * 1e3:.2f} | {one['train_on_batch'] * 1e3:.2f} ", end="")
    print(f"| {two['train_on_batch'] * 1e3:.2f} |")
    ratios = sorted(second["200 layers"] / first["200 layers"] for first, second in rounds)
    print(f"\n200 layers, 2 ranks against 1: {median(ratios):.2f} times as long ", end="")
    print(f"({ratios[0]:.2f} to {ratios[-1]:.2f})")


if __name__ == "__main__":
    main()
