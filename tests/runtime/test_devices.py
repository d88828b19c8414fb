"""One GPU for each rank."""

import sys
import types

import pytest

from fittrain.errors import LaunchError
from fittrain.runtime.devices import choose_gpu, pin_gpu


class FakeConfig:
    """Stands for tf.config on a host with GPUs; records what it was told."""

    def __init__(self, gpus, error=None):
        self.gpus, self.error, self.calls = gpus, error, []
        self.experimental = types.SimpleNamespace(set_memory_growth=self.set_memory_growth)

    def list_physical_devices(self, kind):
        assert kind == "GPU"
        return self.gpus

    def set_visible_devices(self, gpu, kind):
        if self.error:
            raise self.error
        self.calls.append((gpu, kind))

    def set_memory_growth(self, gpu, enable):
        self.calls.append((gpu, enable))


@pytest.fixture
def tensorflow(monkeypatch):
    def install(gpus, error=None):
        config = FakeConfig(gpus, error)
        monkeypatch.setitem(sys.modules, "tensorflow", types.SimpleNamespace(config=config))
        return config

    return install


@pytest.mark.parametrize(
    ("local_rank", "local_size", "visible", "masked", "index"),
    [
        pytest.param(0, 2, 0, False, None, id="no GPU"),
        pytest.param(1, 2, 2, False, 1, id="a GPU each"),
        pytest.param(3, 4, 8, False, 3, id="more GPUs than ranks"),
        pytest.param(1, 2, 1, True, 0, id="a private GPU"),
        pytest.param(0, 1, 1, False, 0, id="one rank, one GPU"),
    ],
)
def test_run_06_every_rank_gets_its_gpu(local_rank, local_size, visible, masked, index):
    assert choose_gpu(local_rank, local_size, visible, masked) == index


@pytest.mark.parametrize(("visible", "masked"), [(2, True), (2, False), (1, False)])
def test_run_06_too_few_gpus_are_refused_with_the_numbers(visible, masked):
    message = rf"local rank 3 of 4 ranks on this host sees {visible} GPU.* at most {visible} rank"
    with pytest.raises(LaunchError, match=message):
        choose_gpu(3, 4, visible, masked)


def test_pin_gpu_shows_one_gpu_with_growing_memory(tensorflow):
    config = tensorflow(["gpu0", "gpu1"])
    assert pin_gpu(1, 2, {}) == 1
    assert config.calls == [("gpu1", "GPU"), ("gpu1", True)]


def test_pin_gpu_takes_the_only_gpu_a_scheduler_gave(tensorflow):
    tensorflow(["gpu0"])
    assert pin_gpu(1, 2, {"CUDA_VISIBLE_DEVICES": "5"}) == 0


def test_pin_gpu_refuses_to_share_the_only_gpu_of_a_host(tensorflow):
    tensorflow(["gpu0"])
    with pytest.raises(LaunchError, match="CUDA_VISIBLE_DEVICES="):
        pin_gpu(1, 2, {})


def test_pin_gpu_does_nothing_without_gpus(tensorflow):
    config = tensorflow([])
    assert pin_gpu(1, 2, {}) is None
    assert config.calls == []


def test_pin_gpu_after_the_first_operation_is_refused(tensorflow):
    tensorflow(["gpu0"], RuntimeError("Visible devices cannot be modified"))
    with pytest.raises(LaunchError, match=r"already uses the GPUs \(Visible .*fittrain.init\(\)"):
        pin_gpu(0, 1, {})
