"""Seeds for each purpose."""

import subprocess
import sys
import types

import numpy as np
import pytest

from fittrain.errors import ArgumentError
from fittrain.runtime.seeds import derive, set_seeds


@pytest.fixture
def seeds_given(monkeypatch):
    given: list[int] = []
    utils = types.SimpleNamespace(set_random_seed=given.append)
    monkeypatch.setitem(sys.modules, "keras", types.SimpleNamespace(utils=utils))
    return given


def test_derive_never_changes():
    assert derive(7) == 1723238359495444684
    assert derive(7, "dropout", 3) == 3268894749700654777


def test_derive_is_the_same_in_another_process():
    code = "from fittrain.runtime.seeds import derive; print(derive(7, 'dropout', 3))"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert int(run.stdout) == derive(7, "dropout", 3)


def test_derive_separates_seeds_keys_order_and_types():
    values = [derive(7), derive(8), derive(7, 1), derive(7, "1"), derive(7, 1, 2), derive(7, 2, 1)]
    values += [derive(7, 12), derive(7, "a", "b"), derive(7, "ab"), derive(-7), derive(2**80)]
    assert len(set(values)) == len(values)


def test_derive_gives_63_bits():
    values = [derive(0, rank) for rank in range(1000)]
    assert len(set(values)) == 1000
    assert all(0 <= value < 2**63 for value in values)
    assert max(values) > 2**62


def test_derive_takes_numbers_of_numpy():
    assert derive(np.int64(7), np.int32(1), np.str_("a")) == derive(7, 1, "a")


@pytest.mark.parametrize("seed", [1.5, None, "7"])
def test_a_seed_that_is_no_whole_number_is_refused(seed):
    with pytest.raises(ArgumentError, match=f"`seed` must be a whole number. Received {seed!r}"):
        derive(seed)
    with pytest.raises(ArgumentError, match="`seed` must be a whole number"):
        set_seeds(seed)


def test_a_key_of_another_type_is_refused():
    with pytest.raises(ArgumentError, match="`keys` must be whole numbers and strings. .*1.5"):
        derive(7, 1.5)


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1])
def test_set_seeds_agrees_with_plain_keras(seeds_given, seed):
    set_seeds(seed)
    assert seeds_given == [seed]


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_set_seeds_folds_what_keras_refuses(seeds_given, seed):
    set_seeds(seed)
    assert 0 <= seeds_given[0] < 2**32


def test_set_seeds_repeats_real_streams():
    pytest.importorskip("tensorflow")
    code = (
        "import random, numpy, keras\nfrom fittrain.runtime.seeds import set_seeds\n"
        "def draw():\n    set_seeds(7)\n"
        "    return random.random(), numpy.random.rand(), float(keras.random.normal(()))\n"
        "assert draw() == draw()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
