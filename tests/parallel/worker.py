"""Runs every case of `cases*.py` that applies on this rank, and writes what they returned."""

import importlib
import json
import os
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import fittrain  # noqa: E402


def main(folder: str, backend: str) -> None:
    fittrain.init(backend, seed=7)
    import cases

    for path in sorted(Path(__file__).parent.glob("cases_of_*.py")):
        importlib.import_module(path.stem)
    rank, size = fittrain.rank(), fittrain.size()
    results: dict[str, object] = {}
    only = os.environ.get("ONLY", "").split(",") if os.environ.get("ONLY") else []
    for case in cases.CASES:
        if size not in case.ranks or backend not in case.backends:
            continue
        if case.costly and (backend, size) in cases.SPARED:
            continue
        if only and case.function.__name__ not in only:
            continue
        started = time.monotonic()
        try:
            results[case.function.__name__] = case.function(Path(folder))
        except Exception:
            results[case.function.__name__] = {"error": traceback.format_exc()}
        if rank == 0:
            print(f"{time.monotonic() - started:6.1f} s {case.function.__name__}", flush=True)
        # After each case: what was finished is known even if the next one hangs.
        Path(folder, f"rank-{rank:03d}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
