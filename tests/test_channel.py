"""Messages between processes that do not trust each other, and files that may be cut short."""

import os
import pickle
import resource
import selectors
import socket
import struct

import pytest
from lockstep.launch.channel import (
    MOST_BYTES,
    Channel,
    NoMessage,
    anonymous_file,
    in_turn,
    map_file,
)

HEADER = struct.Struct("<4sIH")


@pytest.fixture
def ends():
    """A channel, and the bare socket at its other end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with theirs:
        channel = Channel(ours)
        yield channel, theirs
        channel.close()


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    channels = Channel(ours), Channel(theirs)
    yield channels
    for channel in channels:
        channel.close()


def test_what_is_sent_arrives_with_its_descriptors(pair):
    here, there = pair
    message = {"n": 1 << 40, "x": 0.5, "none": None, "bytes": b"\0\xff", "list": ["ä", True]}
    read, write = os.pipe()
    here.send(message, [read, write])
    here.send({"second": {}})
    received, descriptors = there.take()
    assert received == message
    os.write(descriptors[1], b"through")
    assert os.read(read, 100) == b"through"
    assert there.take() == ({"second": {}}, [])
    assert there.take() is None
    for descriptor in (read, write, *descriptors):
        os.close(descriptor)


def test_names_that_are_no_text_arrive(pair):
    odd = os.fsdecode(b"caf\xe9")
    pair[0].send({"environment": {"HOME": odd, "PATH": "ä"}, "path": [odd]})
    assert pair[1].take()[0] == {"environment": {"HOME": odd, "PATH": "ä"}, "path": [odd]}


def test_half_a_message_keeps_nobody_waiting(ends):
    channel, other = ends
    body = b"\x81\xa1a\x01"
    data = HEADER.pack(b"lstp", len(body), 0) + body
    for at in range(len(data)):
        assert channel.take() is None
        other.send(data[at : at + 1])
    assert channel.take() == ({"a": 1}, [])
    with pytest.raises(TimeoutError):
        channel.receive(0.01)


@pytest.mark.parametrize(
    "data",
    [
        b"x" + HEADER.pack(b"lstp", 4, 0) + b"\x81\xa1a\x01",
        HEADER.pack(b"lstp", MOST_BYTES + 1, 0),
        struct.pack("<QI", 8 << 30, 0),  # 8 GB
        HEADER.pack(b"lstp", 4, 0) + b"\x81\xa1a\xc1",
        HEADER.pack(b"lstp", 1, 0) + b"\x01",
        HEADER.pack(b"lstp", 100_001, 0) + b"\x91" * 100_000 + b"\xc0",
        HEADER.pack(b"lstp", len(pickle.dumps({})), 0) + pickle.dumps({}),
        HEADER.pack(b"lstp", 4, 0) + b"\xc7\x01\x07x",
    ],
    ids=["junk before", "too long", "8 GB", "no type", "no dict", "deep", "pickle", "extension"],
)
def test_what_is_no_message_is_refused(ends, data):
    channel, other = ends
    other.sendall(data)
    with pytest.raises(NoMessage):
        channel.take()


def test_descriptors_that_nobody_named_are_refused_and_closed(ends):
    channel, other = ends
    read, write = os.pipe()
    socket.send_fds(other, [HEADER.pack(b"lstp", 1, 0) + b"\x80"], [write])
    os.close(write)
    with pytest.raises(NoMessage):
        channel.take()
    assert os.read(read, 1) == b""  # nobody has the other end any more
    os.close(read)


def test_lost_descriptors_are_told(pair):
    null = os.open(os.devnull, os.O_RDONLY)
    pair[0].send({"a": 1}, [null] * 20)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (null + 5, limits[1]))
    try:
        with pytest.raises(OSError, match="too many open files"):
            pair[1].take()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    os.close(null)


def test_the_other_end_is_gone_or_does_not_read(pair):
    here, there = pair
    with pytest.raises(ValueError, match="too long"):
        here.send({"a": b"x" * MOST_BYTES})
    with pytest.raises(TimeoutError):
        here.send({"a": b"x" * (MOST_BYTES // 2)}, patience=0.01)
    there.close()
    with pytest.raises(OSError):
        here.send({})
    with pytest.raises(EOFError):
        here.take()


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="only Linux seals files")
@pytest.mark.parametrize("reused", [False, True])
def test_what_was_let_go_of_has_no_turn(reused):
    """A rank's answer and the order to end all ranks may come in the same moment."""
    with selectors.DefaultSelector() as selector:
        pairs = [socket.socketpair(socket.AF_UNIX) for _ in range(2)]
        channels = [Channel(ours) for ours, _ in pairs]
        heard = []

        def close_the_other(own):
            (other,) = (one for one in channels if one is not own)
            number = other.fileno()
            selector.unregister(other)
            other.close()
            if reused:
                os.dup2(own.fileno(), number)
                selector.register(number, selectors.EVENT_READ, None)
            heard.append(own)

        for channel, (_, theirs) in zip(channels, pairs, strict=True):
            selector.register(
                channel, selectors.EVENT_READ, lambda own=channel: close_the_other(own)
            )
            Channel(theirs).send({"do": "end"})
        for key in in_turn(selector, 5):
            key.data()
        assert len(heard) == 1
        if reused:
            (number,) = (key.fd for key in selector.get_map().values() if key.data is None)
            os.close(number)
        for end in (heard[0], *(theirs for _, theirs in pairs)):
            end.close()


def test_files_of_fixed_size_cannot_be_cut_short():
    descriptor = anonymous_file("test", 1 << 20)
    memory = map_file(os.dup(descriptor), shared=True)
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, 0)
    assert memory[(1 << 20) - 1] == 0
    os.close(descriptor)
    arrived = anonymous_file("result")
    os.write(arrived, b"r" * (1 << 20))
    memory = map_file(os.dup(arrived))
    with pytest.raises(PermissionError):
        os.ftruncate(arrived, 0)
    assert memory[: 1 << 20] == b"r" * (1 << 20)
    os.close(arrived)


def test_a_file_that_can_be_cut_short_is_copied(tmp_path):
    path = tmp_path / "result"
    path.write_bytes(b"r" * (1 << 20))
    memory = map_file(os.open(path, os.O_RDWR))
    os.truncate(path, 0)
    assert memory[: 1 << 20] == b"r" * (1 << 20)  # SIGBUS where it was mapped
