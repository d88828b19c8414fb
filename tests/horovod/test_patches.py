import dataclasses
from pathlib import Path

import pytest

from fittrain.errors import BuildError
from fittrain.horovod.patches import (
    CPU_PATCHES,
    NCCL_PATCHES,
    Patch,
    apply_patches,
    digest,
    patches_for,
)

PATCH = Patch("CMakeLists.txt", "list(xla)\n", "", "xla is not there")


def test_patch_replaces_its_one_match(tmp_path):
    (tmp_path / "CMakeLists.txt").write_text("list(mpi)\nlist(xla)\nlist(end)\n")
    apply_patches([PATCH], tmp_path)
    assert (tmp_path / "CMakeLists.txt").read_text() == "list(mpi)\nlist(end)\n"


@pytest.mark.parametrize("count", [0, 2])
def test_patch_that_does_not_match_once_stops(tmp_path, count):
    text = "list(mpi)\n" + "list(xla)\n" * count
    (tmp_path / "CMakeLists.txt").write_text(text)
    with pytest.raises(BuildError, match=f"matched {count} times"):
        apply_patches([PATCH], tmp_path)
    assert (tmp_path / "CMakeLists.txt").read_text() == text


def test_patch_applied_twice_stops(tmp_path):
    (tmp_path / "CMakeLists.txt").write_text("list(xla)\n")
    apply_patches([PATCH], tmp_path)
    with pytest.raises(BuildError, match="exactly once"):
        apply_patches([PATCH], tmp_path)


def test_missing_file_stops(tmp_path):
    with pytest.raises(BuildError, match="CMakeLists.txt"):
        apply_patches([PATCH], tmp_path)


@pytest.mark.parametrize("field", ["path", "before", "after"])
def test_digest_changes_with_what_a_patch_does(field):
    changed = dataclasses.replace(PATCH, **{field: "other"})
    assert digest([changed]) != digest([PATCH])


def test_digest_does_not_change_with_the_words_of_a_reason():
    assert digest([dataclasses.replace(PATCH, reason="other")]) == digest([PATCH])


def test_nccl_build_adds_patches():
    assert patches_for(None) == CPU_PATCHES
    assert patches_for("nccl") == CPU_PATCHES + NCCL_PATCHES
    assert digest(patches_for(None)) != digest(patches_for("nccl"))


@pytest.mark.parametrize("patch", CPU_PATCHES + NCCL_PATCHES, ids=lambda patch: patch.path)
def test_patch_has_a_reason_and_an_effect(patch):
    assert len(patch.reason) > 20
    assert patch.before != patch.after


@pytest.mark.parametrize("patch", CPU_PATCHES + NCCL_PATCHES, ids=lambda patch: patch.path)
def test_patch_is_described_for_users(patch):
    page = Path(__file__).parents[2] / "docs" / "horovod.md"
    assert f"`{patch.path}`" in page.read_text()
