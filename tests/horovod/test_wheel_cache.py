import dataclasses
import subprocess
import sys
import textwrap

import pytest

from fittrain.errors import BuildError
from fittrain.horovod.wheel_cache import WheelCache, WheelKey, cache_folder


@pytest.fixture
def cache(tmp_path):
    return WheelCache(tmp_path / "cache")


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(WheelKey)])
def test_every_part_of_the_key_makes_another_wheel(key, field):
    assert dataclasses.replace(key, **{field: "other"}).digest != key.digest


def test_key_is_the_same_in_another_process(key):
    program = f"from fittrain.horovod.wheel_cache import WheelKey; print({key!r}.digest)"
    output = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert output.strip() == key.digest


def test_version_names_the_key(key):
    assert key.version == f"0.28.1+fittrain.{key.digest}"


def test_empty_cache_has_no_wheel(cache, key):
    assert cache.find(key) is None


def test_stored_wheel_is_found_by_its_key_only(cache, key, wheel):
    stored = cache.store(wheel, key)
    assert cache.find(key) == stored
    assert stored.read_bytes() == wheel.read_bytes()
    assert cache.find(dataclasses.replace(key, mpi="MPICH 5.0.2")) is None


def test_stored_wheel_keeps_its_name_which_pip_reads(cache, key, wheel):
    assert cache.store(wheel, key).name == wheel.name


def test_damaged_wheel_is_not_found(cache, key, wheel):
    with cache.store(wheel, key).open("r+b") as stream:
        stream.write(b"X")
    assert cache.find(key) is None


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"wheel": "../../etc"}'])
def test_damaged_entry_is_not_found(cache, key, wheel, text):
    (cache.store(wheel, key).parent / "entry.json").write_text(text)
    assert cache.find(key) is None


def test_storing_again_replaces(cache, key, wheel):
    cache.store(wheel, key)
    cache.mark_proved(key)
    wheel.write_bytes(b"other")
    stored = cache.store(wheel, key)
    assert stored.read_bytes() == b"other"
    assert not cache.is_proved(key)
    assert [entry.name for entry in cache.folder.iterdir()] == [stored.parent.name]


def test_proof_is_remembered_until_the_wheel_is_dropped(cache, key, wheel):
    cache.store(wheel, key)
    assert not cache.is_proved(key)
    cache.mark_proved(key)
    assert cache.is_proved(key)
    cache.drop(key)
    assert cache.find(key) is None
    assert not cache.is_proved(key)


def test_marking_without_an_entry_is_no_error(cache, key):
    cache.mark_proved(key)
    assert not cache.is_proved(key)


def test_folder_that_cannot_be_written_is_a_clear_error(tmp_path, key, wheel):
    (tmp_path / "file").write_text("")
    with pytest.raises(BuildError, match="Storing the wheel in"):
        WheelCache(tmp_path / "file" / "cache").store(wheel, key)


def test_full_disk_leaves_the_cache_as_it_was(tmp_path, key, wheel):
    # The limit on a file's size fails in the middle of the copy, as a full disk does.
    program = textwrap.dedent(f"""
        import resource, signal
        from pathlib import Path
        from fittrain.errors import BuildError
        from fittrain.horovod.wheel_cache import WheelCache, WheelKey
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        try:
            WheelCache(Path({str(tmp_path / "cache")!r})).store(Path({str(wheel)!r}), {key!r})
        except BuildError as error:
            print(error)
    """)
    output = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert "The disk is full" in output
    assert list((tmp_path / "cache").iterdir()) == []


def test_left_over_of_a_killed_store_is_not_taken(cache, key, wheel):
    stored = cache.store(wheel, key)
    stored.parent.rename(cache.folder / f".{stored.parent.name}.killed")
    assert cache.find(key) is None


def test_cache_folder_follows_the_xdg_rules(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "fittrain" / "horovod"
    for ignored in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert str(cache_folder()) == "/home/someone/.cache/fittrain/horovod"
