import numpy as np
import pytest

from tests.parallel.job import HERE, mpirun

ROWS, COLUMNS = 50_000, 1024
SIZE = ROWS * COLUMNS * 4


@pytest.fixture(scope="module")
def mapped(tmp_path_factory):
    """A file of 200 MB, with data in every page."""
    path = tmp_path_factory.mktemp("mapped") / "rows.bin"
    data = np.memmap(path, "float32", "w+", shape=(ROWS, COLUMNS))
    data[:] = np.arange(ROWS, dtype="float32")[:, None] / ROWS
    data.flush()
    return path


@pytest.mark.parametrize("way", ["blocks", "steps"])
def test_data_10_a_rank_holds_its_part_of_a_memory_map_at_most(mapped, way):
    job = mpirun(4, str(HERE / "memory.py"), str(mapped), str(ROWS), str(COLUMNS), way)
    assert job.returncode == 0, job.errors
    growths = [int(line.split()[2]) for line in job.stdout.splitlines() if "growth" in line]
    assert len(growths) == 4
    assert max(growths) < SIZE / 4 + 32 * 2**20, growths
