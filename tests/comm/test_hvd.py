"""What only a wrong installation shows: stand-ins for Horovod and mpi4py that disagree."""

import pytest

from fittrain.comm import hvd, mpi
from fittrain.errors import LaunchError


class AnotherWorld:
    """A Horovod linked to another MPI library: alone in a world of its own."""

    def init(self):
        """Succeeds, as the real one does."""

    def size(self):
        return 1

    def rank(self):
        return 0


def test_run_05_horovod_and_mpi4py_that_count_different_ranks_are_refused(monkeypatch):
    def world_of_four(self, **options):
        self.rank, self.size = 2, 4

    monkeypatch.setattr(hvd, "load_horovod", AnotherWorld)
    monkeypatch.setattr(mpi.MpiCommunicator, "__init__", world_of_four)
    with pytest.raises(LaunchError, match="Horovod says rank 0 of 1 and mpi4py rank 2 of 4"):
        hvd.HorovodCommunicator()
