"""Jobs need an `mpirun`; what the cases leave behind lives for the whole test session."""

import os
from pathlib import Path

import pytest

from tests.parallel.job import mpirun_path


@pytest.fixture(scope="session", autouse=True)
def kept_folder(tmp_path_factory):
    """A folder that jobs find through the environment and tests can look into afterwards."""
    folder = tmp_path_factory.mktemp("kept")
    os.environ["FITTRAIN_TEST_KEEP"] = str(folder)
    return Path(folder)


def pytest_collection_modifyitems(items):
    if mpirun_path() is None:
        for item in items:
            if "parallel" in item.path.parts:
                item.add_marker(pytest.mark.skip(reason="there is no mpirun"))
