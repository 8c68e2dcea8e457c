"""Files of data sets: idx files, archives, and pickles of Python 2 such as those of CIFAR."""

import io
import struct
import tarfile

import numpy as np


def idx(shape, content=None, *, kind=8) -> bytes:
    """An idx file with the bytes 0, 1, 2, ... or the given ones."""
    numbers = bytes(n % 256 for n in range(np.prod(shape))) if content is None else content
    return bytes([0, 0, kind, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + numbers


def archive(path, members):
    """A gzipped tar archive of files, or of members with a type and a link, in this order."""
    with tarfile.open(path, "w:gz") as file:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                member.size = len(content)
                file.addfile(member, io.BytesIO(content))
            else:
                member.type, member.linkname = content
                file.addfile(member)
    return path


def pickled(value) -> bytes:
    """The value as `cPickle.dump(value, file, 2)` of Python 2 writes it, opcode by opcode.

    Text is a string of bytes, and an array is rebuilt by the functions of numpy 1.
    """
    return b"\x80\x02" + opcodes(value) + b"."


def opcodes(value) -> bytes:
    if isinstance(value, dict):
        return b"}(" + b"".join(opcodes(k) + opcodes(v) for k, v in value.items()) + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(map(opcodes, value)) + b"e"
    if isinstance(value, tuple):
        return b"(" + b"".join(map(opcodes, value)) + b"t"
    if isinstance(value, np.ndarray):
        return (
            b"cnumpy.core.multiarray\n_reconstruct\n"
            + b"(cnumpy\nndarray\n"
            + opcodes((0,))
            + opcodes("b")
            + b"tR("
            + b"".join(map(opcodes, (1, value.shape)))
            + dtype(value.dtype)
            + b"\x89"
            + opcodes(value.tobytes())
            + b"tb"
        )
    if isinstance(value, int):
        small = -(2**31) <= value < 2**31
        return b"J" + struct.pack("<i", value) if small else b"\x8a\x08" + struct.pack("<q", value)
    if value is None:
        return b"N"
    content = value if isinstance(value, bytes) else value.encode("latin1")
    if len(content) < 256:
        return b"U" + bytes([len(content)]) + content
    return b"T" + struct.pack("<i", len(content)) + content


def dtype(kind: np.dtype) -> bytes:
    order, code = kind.str[0], kind.str[1:]
    state = (3, order, None, None, None, -1, -1, 0)
    return b"cnumpy\ndtype\n" + opcodes((code, 0, 1)) + b"R" + opcodes(state) + b"b"
