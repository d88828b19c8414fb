import json

import pytest

from fittrain.errors import MissingDependencyError
from fittrain.horovod import features as features_module
from fittrain.horovod.commands import Completed
from fittrain.horovod.features import explain, extension, read_features, require_horovod


@pytest.fixture
def horovod(add_package):
    """A Horovod that looks whole, beside the TensorFlow it was built for."""
    site = add_package("tensorflow-cpu", "2.21.0")
    add_package("horovod", "0.28.1+fittrain.0")
    folder = site / "horovod"
    (folder / "tensorflow").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('must not be imported')\n")
    (folder / "metadata.json").write_text('{"tensorflow": "2.21.0", "dummy": "none"}')
    extension(folder).write_bytes(b"")
    return folder


def test_whole_horovod_is_found_without_importing_it(horovod):
    assert require_horovod() == horovod


def test_inst_03_hidden_horovod(add_package):
    add_package("tensorflow-cpu", "2.21.0")
    with pytest.raises(MissingDependencyError, match="not installed. Run `fittrain horovod build`"):
        require_horovod()


def test_inst_03_hidden_extension(horovod):
    extension(horovod).unlink()
    with pytest.raises(MissingDependencyError, match="without its compiled TensorFlow extension"):
        require_horovod()


def test_extension_of_another_python_is_named(horovod):
    extension(horovod).rename(horovod / "tensorflow" / "mpi_lib.cpython-39-x86_64-linux-gnu.so")
    with pytest.raises(MissingDependencyError, match="another Python .cpython-39-x86_64"):
        require_horovod()


def test_horovod_of_another_tensorflow_is_named(horovod):
    (horovod / "metadata.json").write_text('{"tensorflow": "2.20.0"}')
    with pytest.raises(MissingDependencyError, match=r"for TensorFlow 2.20.0, and .* 2.21.0 is"):
        require_horovod()


def test_hidden_tensorflow_is_said(horovod):
    next(horovod.parent.glob("tensorflow_cpu*")).rename(horovod.parent / "hidden")
    with pytest.raises(MissingDependencyError, match=r"fittrain\[cpu\]"):
        require_horovod()


@pytest.mark.parametrize("text", ["", "[]", "{}"])
def test_unreadable_metadata_is_no_reason_to_refuse(horovod, text):
    (horovod / "metadata.json").write_text(text)
    assert require_horovod() == horovod


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ImportError: libmpi.so.40: cannot open shared object file: No such file", "libmpi.so.40"),
        ("libnccl.so.2: cannot open shared object file", "libnccl.so.2"),
        ("libtensorflow_cc.so.2: cannot open shared object file", "libtensorflow_cc.so.2"),
        ("mpi_lib.so: undefined symbol: _ZN3tsl6StatusE", "_ZN3tsl6StatusE"),
        ("Extension horovod.tensorflow has not been built", "without its"),
        ("tensorflow installed with version 2.20.0 but found version 2.21.0", "2.20.0"),
        ("ModuleNotFoundError: No module named 'horovod'", "is not installed"),
    ],
)
def test_inst_03_riddle_becomes_one_line_with_a_remedy(text, reason):
    explained = explain(text)
    assert reason in explained
    assert "\n" not in explained
    assert "Run `" in explained


def test_unknown_text_is_not_explained():
    assert explain("Segmentation fault") is None


def _answering(exit_code, output):
    return lambda command, **settings: Completed(exit_code, output)


def test_features_are_read_from_a_process_of_its_own(horovod, monkeypatch):
    built = {"mpi": True, "gloo": True, "nccl": False}
    output = f"some noise\nfittrain-features {json.dumps(built)}\n"
    monkeypatch.setattr(features_module, "run", _answering(0, output))
    found = read_features({})
    assert found.built == built
    assert (found.version, found.tensorflow) == ("0.28.1+fittrain.0", "2.21.0")


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("libmpi.so.40: cannot open shared object file", "MPI library that Horovod was built with"),
        ("Segmentation fault", "Horovod does not load"),
    ],
)
def test_inst_03_library_that_does_not_load(horovod, monkeypatch, output, reason):
    monkeypatch.setattr(features_module, "run", _answering(1, output))
    with pytest.raises(MissingDependencyError, match=reason):
        read_features({})
