import hashlib
import io
import os
import tarfile

import pytest

from clnp.data.catalog import extract, fetch
from clnp.errors import DataError
from support.website import nobody, serving

CONTENT = bytes(range(256)) * 3000
MD5 = "md5:" + hashlib.md5(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def site(tmp_path):
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / "data.bin").write_bytes(CONTENT)
    with serving(tmp_path / "www") as site:
        yield site


@pytest.fixture
def path(tmp_path):
    (tmp_path / "here").mkdir()
    return tmp_path / "here" / "data.bin"


def message_of(call, *args, **options) -> str:
    with pytest.raises(DataError) as caught:
        call(*args, **options)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


@pytest.mark.parametrize("algorithm", ["md5", "sha1", "sha256"])
def test_a_file_with_the_right_checksum_is_kept(site, path, algorithm):
    checksum = f"{algorithm}:{hashlib.new(algorithm, CONTENT).hexdigest()}"
    fetch(f"{site.url}data.bin", path, checksum=checksum)
    assert path.read_bytes() == CONTENT
    assert os.listdir(path.parent) == ["data.bin"]


def test_others_may_read_it_as_they_may_any_new_file(site, path):
    fetch(f"{site.url}data.bin", path, checksum=MD5)
    (path.parent / "plain").touch()
    assert path.stat().st_mode == (path.parent / "plain").stat().st_mode


@pytest.mark.parametrize("manner", [None, "unsized"])
def test_progress_goes_from_nothing_to_everything(site, path, manner):
    if manner is not None:
        site.manners["data.bin"] = manner
    told = []
    fetch(f"{site.url}data.bin", path, checksum=MD5, on_progress=lambda *args: told.append(args))
    total = len(CONTENT) if manner is None else None
    assert told[0] == ("data.bin", 0, total)
    assert told[-1] == ("data.bin", len(CONTENT), total)
    assert len(told) > 3
    assert [each[1] for each in told] == sorted(each[1] for each in told)


def refused(site, path, **options) -> str:
    """The message of a download that fails and changes nothing, with an old file and without."""
    url = options.pop("url", f"{site.url}data.bin")
    message = message_of(fetch, url, path, **{"checksum": MD5, **options})
    assert os.listdir(path.parent) == []
    path.write_bytes(b"old")
    assert message_of(fetch, url, path, **{"checksum": MD5, **options}) == message
    assert path.read_bytes() == b"old"
    assert os.listdir(path.parent) == ["data.bin"]
    return message


def test_a_wrong_checksum_is_refused_and_nothing_is_kept(site, path):
    assert refused(site, path, checksum="sha1:1234") == (
        f"{site.url}data.bin is not the published file, and was not kept: its sha1 is "
        f"{hashlib.sha1(CONTENT).hexdigest()}, and 1234 was expected"
    )


def test_a_file_that_the_server_does_not_have_is_named(site, path):
    url = f"{site.url}gone.bin"
    assert refused(site, path, url=url) == (
        f"{url} cannot be downloaded: the server says 404 File not found"
    )


def test_a_server_that_is_not_there_is_named(site, path):
    url = f"{nobody()}data.bin"
    message = refused(site, path, url=url)
    assert message.startswith(f"{url} cannot be reached: ")
    assert "refused" in message


def test_a_name_that_is_not_known_is_named(site, path):
    url = "http://data.invalid/data.bin"
    assert refused(site, path, url=url).startswith(f"{url} cannot be reached: ")


def test_half_a_file_is_refused(site, path):
    site.manners["data.bin"] = "truncated"
    assert refused(site, path) == (
        f"{site.url}data.bin broke off after {len(CONTENT) // 2} of {len(CONTENT)} bytes"
    )


def test_a_server_that_hangs_up_is_named(site, path):
    site.manners["data.bin"] = "rude"
    message = refused(site, path)
    assert message.startswith(
        (f"{site.url}data.bin cannot be reached: ", f"{site.url}data.bin broke")
    )


def test_silence_is_not_borne_for_ever(site, path):
    site.manners["data.bin"] = "silent"
    message = refused(site, path, timeout=0.2)
    assert message.startswith(f"{site.url}data.bin broke off after ")
    assert message.endswith("bytes: timed out")


def test_an_interrupted_download_leaves_nothing(site, path):
    def interrupt(name, done, total):
        if done > 0:
            assert len(os.listdir(path.parent)) == 1
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(f"{site.url}data.bin", path, checksum=MD5, on_progress=interrupt)
    assert os.listdir(path.parent) == []


def test_a_place_that_cannot_be_written_to_is_named(site, tmp_path):
    path = tmp_path / "no" / "such" / "data.bin"
    assert message_of(fetch, f"{site.url}data.bin", path, checksum=MD5) == (
        f"{path} cannot be written: No such file or directory"
    )
    assert site.asked == []


def archive_of(path, members, mode="w:gz"):
    with tarfile.open(path, mode) as file:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                member.size = len(content)
                file.addfile(member, io.BytesIO(content))
            else:
                member.type, member.linkname = content
                file.addfile(member)
    return path


def test_only_the_members_that_are_asked_for_are_written(tmp_path, path):
    archive = archive_of(
        tmp_path / "all.tar.gz",
        {
            "../outside": b"no",
            "/outside": b"no",
            "folder/../../outside": b"no",
            "folder/one.bin": b"1" * 100_000,
            "./folder/two.bin": b"2",
            "folder/readme": b"no",
        },
    )
    extract(
        archive,
        {"folder/one.bin": path.parent / "one.bin", "folder/two.bin": path.parent / "two"},
    )
    assert (path.parent / "one.bin").read_bytes() == b"1" * 100_000
    assert (path.parent / "two").read_bytes() == b"2"
    assert sorted(os.listdir(path.parent)) == ["one.bin", "two"]
    assert sorted(os.listdir(tmp_path)) == ["all.tar.gz", "here"]


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE]
)
def test_a_member_that_is_no_plain_file_is_not_there(tmp_path, path, kind):
    members = {"secret": b"secret", "folder/one.bin": (kind, "secret")}
    archive = archive_of(tmp_path / "all.tar.gz", members)
    assert message_of(extract, archive, {"folder/one.bin": path}) == (
        f"{archive} does not hold folder/one.bin"
    )
    assert os.listdir(path.parent) == []


def test_members_that_are_missing_are_named(tmp_path, path):
    archive = archive_of(tmp_path / "all.tar.gz", {"a": b"1", "b": b"2"})
    assert message_of(extract, archive, {"a": path, "c": path, "d": path}) == (
        f"{archive} does not hold c, d"
    )


def test_a_damaged_archive_is_named(tmp_path, path):
    archive = archive_of(tmp_path / "all.tar.gz", {"other": b"1", "a": os.urandom(50_000)})
    whole = archive.read_bytes()
    for content in (b"", b"<html>404</html>", whole[:30], whole[: len(whole) // 2]):
        archive.write_bytes(content)
        message = message_of(extract, archive, {"a": path})
        assert message.startswith(f"{archive} cannot be unpacked: ")
