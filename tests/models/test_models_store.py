"""The store on disk: damage, verification, rights and room."""

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from model_web import CONFIG, WEIGHTS, WHEEL_1, assert_whole, serve, sha256, toy_entry, toy_store

from duologue.errors import ModelError, UsageError
from duologue.models import ensure as ensure_default
from duologue.models import verify as verify_module
from duologue.models.verify import State


def test_a_look_at_unchanged_files_hashes_nothing(filled, monkeypatch):
    def refuse(path):
        raise AssertionError(f"hashed {path}")

    monkeypatch.setattr(verify_module, "sha256_of", refuse)
    assert filled.locate("toy") == filled.root / "toy"
    os.utime(filled.root / "toy" / "model.bin")
    with pytest.raises(AssertionError, match="hashed .*model.bin"):
        filled.locate("toy")


def test_a_flipped_bit_with_the_old_time_is_found_by_verify(filled):
    path = filled.root / "toy" / "model.bin"
    status = path.stat()
    path.write_bytes(b"\xff" + WEIGHTS[1:])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    report = filled.inspect("toy", rehash=True)
    assert report.state is State.DAMAGED
    assert report.problems == [
        f"model.bin has SHA-256 {sha256(path.read_bytes())}, expected {sha256(WEIGHTS)}"
    ]


@pytest.mark.parametrize("damage", ["shorter", "other", "gone", "bad marker"])
def test_a_damaged_model_is_fetched_again(filled, damage):
    path = filled.root / "toy" / "model.bin"
    if damage == "shorter":
        path.write_bytes(WEIGHTS[:-1])
    elif damage == "other":
        path.write_bytes(b"\xff" + WEIGHTS[1:])
    elif damage == "gone":
        path.unlink()
    else:
        (path.parent / ".verified.json").write_text('{"model.bin": 1}')
    assert (filled.locate("toy") is None) == (damage != "bad marker")
    if damage == "shorter":
        assert filled.inspect("toy").problems == ["model.bin has 102399 bytes, expected 102400"]
    assert_whole(filled.ensure("toy"))


def test_files_put_there_by_hand_are_verified_without_a_fetch(tmp_path, web):
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / "model.bin").write_bytes(WEIGHTS)
    (folder / "config.json").write_bytes(CONFIG)
    assert toy_store(tmp_path, web).ensure("toy", offline=True) == folder


def test_local_folders_and_files_are_references(tmp_path, web):
    store = toy_store(tmp_path, web)
    file = tmp_path / "own.gguf"
    file.write_bytes(b"x")
    assert store.ensure(str(file)) == store.locate(str(file)) == file
    assert store.ensure(str(tmp_path)) == tmp_path
    assert store.locate(str(tmp_path / "absent")) is None
    with pytest.raises(ModelError, match="absent: no such folder or file"):
        store.ensure(str(tmp_path / "absent"))


@pytest.mark.parametrize("ref", ["whisper-bsae", "smolm2-135m-instruct"])
def test_an_unknown_name_gets_the_nearest(ref):
    with pytest.raises(UsageError, match=r"did you mean '(whisper-base|smollm2-135m-instruct)'\?"):
        ensure_default(ref, offline=True)


def test_an_empty_name_is_unknown():
    with pytest.raises(UsageError, match="unknown model ''"):
        ensure_default("", offline=True)


@contextmanager
def powerless():
    """Run the block as a user who may write nowhere; root passes every permission check."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_read_only_store_is_a_clear_error(web):
    web.publish_toy()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        store = toy_store(root, web)
        root.chmod(0o555)
        with powerless(), pytest.raises(ModelError) as caught:
            store.ensure("toy")
        root.chmod(0o755)
    assert f"the model store {root} cannot be used: Permission denied" in str(caught.value)
    assert "DUOLOGUE_MODELS" in str(caught.value)


def test_a_read_only_store_that_is_filled_works():
    with tempfile.TemporaryDirectory() as folder, serve() as web:
        web.publish_toy()
        root = Path(folder)
        store = toy_store(root, web)
        model = store.ensure("toy")
        (model / ".verified.json").unlink()
        model.chmod(0o555)
        root.chmod(0o555)
        with powerless():
            assert store.ensure("toy", offline=True) == model
            assert not (model / ".verified.json").exists()
        model.chmod(0o755)
        root.chmod(0o755)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_a_clear_error(tmp_path, web):
    web.publish_toy()
    work = tmp_path / ".downloads" / "toy"
    work.mkdir(parents=True)
    (work / f"{sha256(WHEEL_1)}.whl.part").symlink_to("/dev/full")
    with pytest.raises(ModelError, match=r"No space left on device.*Make room"):
        toy_store(tmp_path, web).ensure("toy")


def test_too_little_room_is_told_before_the_download(tmp_path, web):
    entry = toy_entry()
    entry["files"][0]["size"] = 10**18
    web.publish_toy()
    with pytest.raises(ModelError, match=r"toy needs 10000000\d+ bytes, \d+ are free.*Make room"):
        toy_store(tmp_path, web, entry).ensure("toy")
    assert web.wheel_hits() == 0
