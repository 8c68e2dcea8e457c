import os

from hypothesis import given, strategies as st

from clnp.terminal.status import NUM_SEEN, Tail


def test_only_what_is_new_is_read(tmp_path):
    path = tmp_path / "events"
    tail = Tail(path)
    assert tail.read() == ([], False)
    path.write_bytes(b"a\nb\n")
    assert tail.read() == ([b"a", b"b"], False)
    assert tail.read() == ([], False)
    with path.open("ab") as file:
        file.write(b"c\n")
    assert tail.read() == ([b"c"], False)


def test_a_line_counts_once_it_is_whole(tmp_path):
    path = tmp_path / "events"
    tail = Tail(path)
    path.write_bytes(b"a\nhal")
    assert tail.read() == ([b"a"], False)
    assert tail.read() == ([], False)
    path.write_bytes(b"a\nhalf\nb")
    assert tail.read() == ([b"half"], False)


def test_a_file_that_was_cut_off_is_read_from_its_beginning(tmp_path):
    path = tmp_path / "events"
    tail = Tail(path)
    path.write_bytes(b"a\nb\nc\n")
    tail.read()
    os.truncate(path, 4)
    assert tail.read() == ([b"a", b"b"], True)
    os.truncate(path, 0)
    assert tail.read() == ([], True)


def test_a_file_that_was_cut_off_and_has_grown_past_the_old_place(tmp_path):
    path = tmp_path / "events"
    tail = Tail(path)
    path.write_bytes(b"a\nb\n")
    tail.read()
    path.write_bytes(b"a\nB\nc\nd\n")
    assert tail.read() == ([b"a", b"B", b"c", b"d"], True)


def test_zeros_of_a_network_file_system_are_read_again(tmp_path):
    path = tmp_path / "events"
    tail = Tail(path)
    path.write_bytes(b"a\nb\0\0\n\0\0\n")
    assert tail.read() == ([b"a"], False)
    path.write_bytes(b"a\nb12\n34\n")
    assert tail.read() == ([b"b12", b"34"], False)


def test_a_damaged_line_that_others_follow_is_left_out(tmp_path):
    path = tmp_path / "events"
    tail = Tail(path)
    path.write_bytes(b"a\nb\0b\n")
    assert tail.read() == ([b"a"], False)
    path.write_bytes(b"a\nb\0b\nc\nd\0\n\0\0")
    assert tail.read() == ([b"c"], False)
    path.write_bytes(b"a\nb\0b\nc\nd\0\ne\n")
    assert tail.read() == ([b"e"], False)
    # What was missing has arrived after all.
    path.write_bytes(b"a\nb!b\nc\nd!\ne\n")
    assert tail.read() == ([b"a", b"b!b", b"c", b"d!", b"e"], True)


def test_what_cannot_be_read_for_the_moment_is_no_news(tmp_path):
    path = tmp_path / "events"
    tail = Tail(path)
    path.write_bytes(b"a\n")
    tail.read()
    path.unlink()
    assert tail.read() == ([], False)
    path.mkdir()
    assert tail.read() == ([], False)
    path.rmdir()
    path.write_bytes(b"a\nb\n")
    assert tail.read() == ([b"b"], False)


def test_reading_changes_nothing(tmp_path):
    path = tmp_path / "events"
    path.write_bytes(b"a\n")
    os.chmod(path, 0o444)
    os.chmod(tmp_path, 0o555)
    before = path.stat()
    assert Tail(path).read() == ([b"a"], False)
    os.chmod(tmp_path, 0o755)
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert [each.name for each in tmp_path.iterdir()] == ["events"]


@given(
    st.lists(
        st.tuples(st.integers(0, 3000), st.lists(st.binary(max_size=300), max_size=5)), max_size=6
    )
)
def test_the_lines_are_always_those_of_the_file(tmp_path_factory, changes):
    """Whatever is cut off and appended, all lines told since the file began anew are its lines."""
    path = tmp_path_factory.mktemp("tail") / "events"
    tail, told, content = Tail(path), [], b""
    for number, (keep, added) in enumerate(changes):
        # Every line differs from those that stood in its place before, as events do by their time.
        lines = [b"%d %s" % (number, x.replace(b"\n", b"").replace(b"\0", b"")) for x in added]
        content = content[:keep] + b"".join(line + b"\n" for line in lines)
        path.write_bytes(content)
        new, anew = tail.read()
        told = new if anew else told + new
        assert told == content.split(b"\n")[:-1]
    assert len(tail._seen) <= NUM_SEEN
