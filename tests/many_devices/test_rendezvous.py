"""Processes that do not fit together: every one of them learns why. No jaxlib is needed."""

import socket
import threading
import time

import pytest

from rlx.distributed.rendezvous import meet
from rlx.errors import ShardingError


def free_port():
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return place.getsockname()[1]


def met(*guests, timeout=1.0, port=None):
    """What each of several processes, given as (processes, rank, releases), is told; "" where all is well."""
    port = port or free_port()
    told = {}

    def come(number, processes, rank, releases):
        try:
            meet("127.0.0.1", port, "127.0.0.1", processes, rank, releases, timeout)
            told[number] = ""
        except ShardingError as error:
            told[number] = str(error)

    threads = [threading.Thread(target=come, args=(n, *guest)) for n, guest in enumerate(guests)]
    for thread in threads:
        thread.start()
        time.sleep(0.02)
    for thread in threads:
        thread.join(30)
    return [told[n] for n in range(len(guests))]


def test_all_come():
    assert met((3, 0, "a"), (3, 1, "a"), (3, 2, "a"), timeout=20) == ["", "", ""]
    assert met((3, 2, "a"), (3, 1, "a"), (3, 0, "a"), timeout=20) == ["", "", ""]
    assert met((1, 0, "a")) == [""]


@pytest.mark.parametrize(
    ("guests", "message"),
    [
        ([(3, 0, "a"), (3, 2, "a")], "process 1 of 3 did not come within 1 s"),
        ([(2, 0, "a"), (3, 1, "a")], "process 1 was started as one of 3, process 0 as one of 2"),
        ([(2, 0, "rlx 1"), (2, 1, "rlx 2")], "process 1 runs rlx 2, process 0 runs rlx 1; use the same"),
        ([(4, 0, "a"), (4, 1, "a"), (4, 1, "a")], "two processes have the rank 1"),
    ],
)
def test_all_are_told_why(guests, message):
    for told in met(*guests):
        assert message in told


def test_nobody_there():
    (told,) = met((2, 1, "a"), timeout=0.3)
    assert "process 1 of 2 cannot reach process 0 at 127.0.0.1" in told and "does it run there" in told


def test_a_port_that_is_taken():
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        place.listen()
        (told,) = met((2, 0, "a"), port=place.getsockname()[1])
    assert "process 0 cannot listen at port" in told and "choose another port" in told


def test_strangers_are_ignored():
    port = free_port()

    def stranger():
        for _ in range(100):
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=1) as way:
                    way.sendall(b"GET / HTTP/1.0\n")
                return
            except OSError:
                time.sleep(0.01)

    visitor = threading.Thread(target=stranger)
    visitor.start()
    assert met((2, 0, "a"), (2, 1, "a"), timeout=20, port=port) == ["", ""]
    visitor.join()
