import socket
import sys

import pytest

from core import process


def test_a_unit_test_starts_no_process() -> None:
    with pytest.raises(pytest.fail.Exception, match="mark it 'processes'"):
        process.capture([sys.executable, "--version"])


@pytest.mark.processes
def test_a_marked_one_may() -> None:
    assert process.capture([sys.executable, "--version"]).stdout.startswith("Python 3.")


def test_a_unit_test_stays_on_this_machine() -> None:
    # addresses that documents use for examples (RFC 5737, RFC 2606)
    with socket.socket() as stream, pytest.raises(pytest.fail.Exception, match="connected to"):
        stream.connect(("192.0.2.1", 80))
    with pytest.raises(pytest.fail.Exception, match=r"looked example\.invalid up"):
        socket.create_connection(("example.invalid", 80))


def test_a_unit_test_may_talk_to_itself() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    with server, socket.create_connection(server.getsockname()) as stream:
        accepted, _ = server.accept()
        accepted.close()
        assert stream.recv(1) == b""
