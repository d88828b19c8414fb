import numpy as np
import pytest
import tensorflow as tf

from fittrain import comm
from fittrain.comm.agreement import digest, name_ranks
from fittrain.comm.base import raised_on_all_ranks
from fittrain.comm.local import LocalCommunicator
from fittrain.comm.progress import Progress
from fittrain.errors import ArgumentError, PeerError, RankMismatchError
from fittrain.testing import RecordingCommunicator


class Scripted(RecordingCommunicator):
    """Rank 0 of several; what the others hold is given."""

    def __init__(self, *others):
        super().__init__(rank=0, size=1 + len(others))
        self.others = list(others)

    def _reduce(self, array, op):
        theirs = [digest(other) for other in self.others]
        return np.min([array, *(np.concatenate([d, -d]) for d in theirs)], axis=0)

    def _gather(self, value):
        self.calls.append(("gather", None))
        return [value, *self.others]


@pytest.mark.parametrize("op", ["sum", "min", "max"])
def test_local_reductions_are_identities(op):
    assert LocalCommunicator().reduce([1.5, 2.5], op).tolist() == [1.5, 2.5]


def test_an_unknown_reduction_is_refused():
    with pytest.raises(ArgumentError, match="`op` must be one of"):
        LocalCommunicator().reduce([1], "mean")


def test_local_objects_come_back():
    communicator = LocalCommunicator()
    assert communicator.broadcast({"a": 1}) == {"a": 1}
    assert communicator.gather(3) == [3]
    assert communicator.concatenate(np.arange(3)).tolist() == [0, 1, 2]
    assert communicator.any(False) is False


def test_weighted_mean_divides_by_the_total_weight():
    gradients = [tf.constant([[1.0, 2.0]]), None, tf.constant(4.0, tf.float64)]
    means, total, sums = RecordingCommunicator(size=3).weighted_mean(gradients, 2.0, [5.0])
    assert means[0].numpy().tolist() == [[1.0, 2.0]]
    assert means[1] is None
    assert means[2].numpy() == 4.0
    assert means[2].dtype == tf.float64
    assert (total.numpy(), sums[0].numpy()) == (6.0, 15.0)


def test_one_collective_for_each_dtype_carries_everything():
    communicator = RecordingCommunicator()
    gradients = [tf.ones([2, 3]), tf.ones([4], tf.float64), tf.ones([5])]
    communicator.weighted_mean(gradients, 1.0, [0.0])
    assert communicator.calls == [
        ("all_reduce", ((13,), "float32")),
        ("all_reduce", ((4,), "float64")),
    ]


def test_a_weight_of_zero_silences_even_nan():
    means, _, _ = RecordingCommunicator().weighted_mean([tf.constant([np.nan])], 0.0)
    assert means[0].numpy().tolist() == [0.0]


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_half_precision_travels_as_float32(dtype):
    communicator = RecordingCommunicator()
    means, _, _ = communicator.weighted_mean([tf.constant([30000.0], dtype)], 1.0)
    assert means[0].dtype == dtype
    assert float(means[0][0]) == pytest.approx(30000, rel=1e-2)
    assert communicator.calls == [("all_reduce", ((2,), "float32"))]


def test_average_is_the_plain_mean():
    assert RecordingCommunicator().average([tf.constant(3.0), None])[0].numpy() == 3.0


def test_equal_values_agree():
    LocalCommunicator().agree({"a": 1})
    Scripted({"b": 2, "a": 1}, {"a": 1, "b": 2}).agree({"a": 1, "b": 2})


def test_only_a_checksum_travels_where_ranks_agree():
    communicator = RecordingCommunicator()
    communicator.agree({"a": "long" * 1000})
    assert communicator.calls == [("reduce", ("min", (8,)))]


@pytest.mark.parametrize(
    "other", [{}, {"a": 2}, {"a": "1"}, {"b": 1}, {"a": 1, "b": None}, {"a": 1.0}]
)
def test_different_descriptions_have_different_checksums(other):
    assert digest({"a": 1}).tolist() != digest(other).tolist()


def test_different_values_name_ranks_and_values():
    with pytest.raises(RankMismatchError, match=r"`a` .* ranks 0, 2: 1; rank 1: 2") as caught:
        Scripted({"a": 2}, {"a": 1}).agree({"a": 1})
    assert raised_on_all_ranks(caught.value)


def test_a_value_that_only_another_rank_has_is_noticed():
    with pytest.raises(RankMismatchError, match="`b`"):
        Scripted({"a": 1, "b": 2}).agree({"a": 1})


def test_an_error_of_our_own_is_raised_everywhere_with_its_rank():
    with pytest.raises(ArgumentError, match="rank 1: too small"):
        Scripted((ArgumentError, "too small")).raise_together(None)


def test_an_error_that_all_ranks_bring_is_raised_as_it_is():
    error = ArgumentError("too small")
    with pytest.raises(ArgumentError) as caught:
        Scripted((ArgumentError, "too small")).raise_together(error)
    assert caught.value is error
    assert raised_on_all_ranks(error)


def test_a_foreign_error_stays_itself_on_its_rank_and_is_a_peers_elsewhere():
    with pytest.raises(KeyError), Scripted(None).together():
        raise KeyError("x")
    with (
        pytest.raises(PeerError, match="rank 1: KeyError"),
        Scripted((PeerError, "KeyError: 'x'")).together(),
    ):
        pass


def test_large_objects_go_in_pieces():
    communicator = RecordingCommunicator()
    communicator.chunk_bytes = 100
    communicator.broadcast_array(np.zeros(250, np.uint8))
    assert communicator.calls == [("broadcast", 100), ("broadcast", 100), ("broadcast", 50)]


def test_rows_for_one_rank_are_copied_and_others_get_none():
    part = np.arange(6.0).reshape(3, 2)
    whole = LocalCommunicator().gather_rows(part)
    assert whole.tolist() == part.tolist()
    assert whole is not part
    assert RecordingCommunicator(rank=1).gather_rows(part) is None
    assert RecordingCommunicator().gather_rows(part).shape == (6, 2)


def test_rows_for_a_rank_that_is_none_are_refused():
    with pytest.raises(ArgumentError, match="`root` must be a rank, from 0 to 0. Received: root=1"):
        LocalCommunicator().gather_rows(np.zeros(1), root=1)


def test_progress_counts_outermost_collectives():
    progress = Progress()
    with progress.enter("update"), progress.enter("reduce"):
        assert (progress.entered, progress.inside) == (1, "update")
    assert (progress.entered, progress.inside) == (1, None)


@pytest.mark.parametrize(
    ("ranks", "words"), [([3], "rank 3"), ([0, 1, 2, 5], "ranks 0-2, 5"), ([1, 0], "ranks 0-1")]
)
def test_ranks_in_words(ranks, words):
    assert name_ranks(ranks) == words


def test_an_unknown_backend_is_refused():
    with pytest.raises(ArgumentError, match="`backend` must be 'auto', 'local'"):
        comm.choose("nccl", 2)


@pytest.mark.parametrize(
    ("size", "installed", "name"), [(1, True, "local"), (2, True, "horovod"), (2, False, "mpi")]
)
def test_auto_takes_horovod_then_mpi_and_local_only_for_one_rank(
    monkeypatch, size, installed, name
):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object() if installed else None)
    assert comm.choose("auto", size)[0] == name
