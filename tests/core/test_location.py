# SPDX-License-Identifier: Apache-2.0
"""Local locations: files and folders, and names from files that must not lead out of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tael.core.location import LocalLocation, locate, safe_parts
from tael.core.source import read
from tael.errors import SourceNotFoundError, SourceReadError, TaelError, UnsafeContentError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "model"
    (root / "sub").mkdir(parents=True)
    (root / "a.bin").write_bytes(b"aaa")
    (root / "sub" / "b.bin").write_bytes(b"bbb")
    (tmp_path / "secret").write_bytes(b"secret")
    return root


def test_file_and_folder(folder: Path) -> None:
    place = locate(folder)
    assert (place.is_dir, place.name, place.names()) == (True, "model", ["a.bin", "sub"])
    file = place.child("a.bin")
    assert (file.is_dir, file.name, file.exists(), file.names()) == (False, "a.bin", True, ["a.bin", "sub"])
    assert read(file.source(), 0, 3) == b"aaa"
    assert file.source() is file.source()
    assert read(file.sibling("sub/b.bin").source(), 0, 3) == b"bbb"
    assert not place.child("none").exists()
    with pytest.raises(SourceNotFoundError):
        place.child("none").source()


def test_source_is_opened_again_after_it_was_closed(folder: Path) -> None:
    file = locate(folder / "a.bin")
    file.source().close()
    assert read(file.source(), 0, 3) == b"aaa"


def test_names_as_the_user_writes_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert locate("a.bin").sibling("sub/b.bin").exists()
    assert locate("a.bin").names() == ["a.bin", "sub"]
    assert locate(".").name == "model"
    assert locate(".").child("a.bin").exists()
    assert locate("sub/../a.bin").exists()  # the user may write what an index may not
    assert locate(f"{folder}/").name == "model"
    assert locate(f"{folder}/").child("a.bin").exists()


def test_nothing_there(tmp_path: Path) -> None:
    for path in (tmp_path / "none", "", "a\0b"):
        with pytest.raises(SourceNotFoundError):
            locate(path)
    with pytest.raises(SourceReadError, match="cannot be listed"):
        LocalLocation(tmp_path / "none" / "x").names()


OUTSIDE = [
    "../secret", "..", "../../etc/passwd", "/etc/passwd", "sub/../../secret", "sub/../a.bin", "./a.bin", ".", "", "/",
    "sub//b.bin", "sub/", "C:\\secret", "C:/secret", "c:secret", "\\\\host\\share\\x", "//host/share/x", "..\\secret",
    "sub\\b.bin", "a.bin\0", "\0", "file:///etc/passwd",
]  # fmt: skip


@pytest.mark.parametrize("name", OUTSIDE)
def test_names_that_could_lead_outside(folder: Path, name: str) -> None:
    for ask in (locate(folder).child, locate(folder / "a.bin").sibling):
        with pytest.raises(UnsafeContentError):
            ask(name)


@pytest.mark.parametrize(
    "name", ["a.bin", "sub/b.bin", "...", "a..b", ".hidden", "-x", "~", "$HOME", "model 1.bin", "名前"]
)
def test_plain_names(folder: Path, name: str) -> None:
    assert locate(folder).child(name).path == str(folder / name)


@given(st.lists(st.sampled_from(["..", ".", "a", "sub", "", "/", "\\", "C:", "\0"]), max_size=6))
def test_whatever_passes_stays_inside(parts: list[str]) -> None:
    name = "/".join(parts)
    try:
        found = safe_parts(name, "index")
    except TaelError:
        return
    assert os.path.normpath(os.path.join("/root/x", *found)).startswith("/root/x/")


def test_symlinks_that_lead_outside(folder: Path, tmp_path: Path) -> None:
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "up").symlink_to(tmp_path)
    (folder / "dangling").symlink_to(tmp_path / "none")
    (folder / "loop").symlink_to("loop")
    for name in ("link", "up/secret", "dangling"):
        with pytest.raises(UnsafeContentError, match="outside"):
            locate(folder).child(name)
    assert not locate(folder).child("loop").exists()


def test_symlinks_that_stay_inside(folder: Path) -> None:
    (folder / "link").symlink_to("sub/b.bin")
    assert read(locate(folder).child("link").source(), 0, 3) == b"bbb"


def test_folder_that_is_itself_a_link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(folder)
    assert locate(tmp_path / "alias").child("a.bin").exists()
    assert locate(tmp_path / "alias" / "a.bin").sibling("sub/b.bin").exists()


@pytest.mark.parametrize("above", ["", "snapshots/blobs", "models--a--b/snapshots/r"])
def test_hub_cache(tmp_path: Path, above: str) -> None:
    """snapshots/REVISION/name links to ../../blobs/DIGEST: that leaves the folder, but not the model."""
    model = tmp_path / above / "models--org--name"
    snapshot = model / "snapshots" / "0123abcd"
    (snapshot / "sub").mkdir(parents=True)
    (model / "blobs" / "deep").mkdir(parents=True)
    (model / "blobs" / "d1").write_bytes(b"xyz")
    (model / "blobs" / "deep" / "d3").write_bytes(b"no")
    (model.parent / "blobs").mkdir()
    (model.parent / "blobs" / "d2").write_bytes(b"no")
    (snapshot / "model.safetensors").symlink_to("../../blobs/d1")
    (snapshot / "evil").symlink_to("../../../blobs/d2")
    (snapshot / "evil2").symlink_to("/etc/passwd")
    (snapshot / "evil3").symlink_to("../../blobs/deep/d3")
    (snapshot / "sub" / "x").symlink_to("../../../blobs/d1")
    assert read(locate(snapshot).child("model.safetensors").source(), 0, 3) == b"xyz"
    assert read(locate(snapshot).child("sub/x").source(), 0, 3) == b"xyz"
    assert read(locate(snapshot / "sub" / "x").sibling("x").source(), 0, 3) == b"xyz"
    for name in ("evil", "evil2", "evil3"):
        with pytest.raises(UnsafeContentError):
            locate(snapshot).child(name)


def test_snapshots_that_are_no_hub_cache_open_nothing(tmp_path: Path) -> None:
    (tmp_path / "snapshots" / "r").mkdir(parents=True)
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "x").write_bytes(b"x")
    (tmp_path / "snapshots" / "r" / "x").symlink_to("../../blobs/x")
    with pytest.raises(UnsafeContentError):
        locate(tmp_path / "snapshots" / "r").child("x")


def test_long_names_do_not_flood_the_message(folder: Path) -> None:
    with pytest.raises(UnsafeContentError) as caught:
        locate(folder).child("../" + "x" * 1_000_000)
    assert len(str(caught.value)) < 1000
