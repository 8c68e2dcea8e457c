import os
import resource
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from clnp.storage.atomic import TEMPORARY, left_over, replace_file


def test_a_file_is_written_or_replaced(tmp_path):
    path = tmp_path / "file"
    for data in (b"one", b"", b"three" * 1000):
        replace_file(path, data)
        assert path.read_bytes() == data
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_what_cannot_be_written_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    replace_file(path, b"old")
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            replace_file(path, b"new" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert path.read_bytes() == b"old"
    assert not list(tmp_path.glob(f"{TEMPORARY}*"))


def test_a_file_is_kept_only_if_it_passes_a_check(tmp_path):
    path, seen = tmp_path / "file", []

    def check(written):
        seen.append((written.parent, written.read_bytes(), path.exists()))
        if written.read_bytes() != b"good":
            raise KeyboardInterrupt

    replace_file(path, b"good", check=check)
    with pytest.raises(KeyboardInterrupt):
        replace_file(path, b"bad", check=check)
    assert seen == [(tmp_path, b"good", False), (tmp_path, b"bad", True)]
    assert path.read_bytes() == b"good"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_the_file_has_the_permissions_of_any_other(tmp_path):
    before = os.umask(0o027)
    try:
        replace_file(tmp_path / "file", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_files_of_processes_that_are_gone_are_left_over(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    old = [f"{TEMPORARY}{gone.pid}-abc", f"{TEMPORARY}abc"]
    for name in (*old, f"{TEMPORARY}{os.getppid()}-abc", "file"):
        (tmp_path / name).touch()
    assert sorted(path.name for path in left_over(tmp_path)) == old

    def check(written):
        assert written.exists()
        assert written not in left_over(tmp_path)

    replace_file(tmp_path / "file", b"", check=check)


def test_a_directory_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="gone"):
        replace_file(tmp_path / "gone" / "file", b"")
    (tmp_path / "plain").write_bytes(b"")
    with pytest.raises(NotADirectoryError, match="plain"):
        replace_file(tmp_path / "plain" / "file", b"")


def test_a_directory_is_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    for name in ("here", "."):
        with pytest.raises(IsADirectoryError) as caught:
            replace_file(Path(name), b"")
        sentence = "this is a directory. Give the name of a file"
        assert str(caught.value) == f"[Errno 21] {sentence}: '{name}'"
    assert [file.name for file in tmp_path.iterdir()] == ["here"]


def test_only_what_is_durable_waits_for_the_disk(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    replace_file(tmp_path / "status", b"1", durable=False)
    assert (tmp_path / "status").read_bytes() == b"1"
    assert synced == []
    replace_file(tmp_path / "result", b"2")
    assert len(synced) == 1
