"""The guard bites: in this process, through a caught exception, in children and in kernels."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import nbformat
import pytest

from tests import no_network
from tests.no_network import NetworkRefusedError
from tools import notebooks

# Reserved for documentation (RFC 5737, RFC 3849): nobody answers there.
ELSEWHERE_4 = ("192.0.2.1", 80)
ELSEWHERE_6 = ("2001:db8::1", 80)


@pytest.fixture
def refused() -> Iterator[list[str]]:
    """The refusals of this test, forgotten at its end so that they do not count against it."""
    before = len(no_network.refused)
    yield no_network.refused
    del no_network.refused[before:]


@pytest.mark.usefixtures("refused")
@pytest.mark.parametrize(
    ("family", "address"),
    [(socket.AF_INET, ELSEWHERE_4), (socket.AF_INET6, ELSEWHERE_6)],
)
def test_a_socket_does_not_connect_elsewhere(
    family: socket.AddressFamily, address: tuple[str, int]
) -> None:
    with socket.socket(family) as sock, pytest.raises(NetworkRefusedError, match="refused here"):
        sock.connect(address)


@pytest.mark.usefixtures("refused")
def test_a_datagram_does_not_leave() -> None:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock,
        pytest.raises(NetworkRefusedError),
    ):
        sock.sendto(b"x", ELSEWHERE_4)


@pytest.mark.usefixtures("refused")
def test_a_foreign_name_is_not_looked_up() -> None:
    with pytest.raises(NetworkRefusedError, match=r"example\.com"):
        socket.getaddrinfo("example.com", 443)


@pytest.mark.usefixtures("refused")
def test_httpx_does_not_take_it_for_a_connection_error() -> None:
    async def get() -> None:
        async with httpx.AsyncClient() as client:
            await client.get("http://example.com/")

    with pytest.raises(NetworkRefusedError):
        asyncio.run(get())


def test_a_refusal_that_the_code_caught_is_remembered(refused: list[str]) -> None:
    count = len(refused)
    with contextlib.suppress(Exception):
        socket.create_connection(ELSEWHERE_4, timeout=1)
    assert len(refused) == count + 1


def test_a_test_that_reached_for_the_network_fails(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(no_network.__file__).parent.parent
    monkeypatch.setenv("PYTHONPATH", str(root))
    pytester.makeconftest((root / "conftest.py").read_text(encoding="utf-8"))
    pytester.makepyfile(
        """
        import contextlib, socket

        def test_swallows():
            with contextlib.suppress(Exception):
                socket.getaddrinfo("example.com", 443)
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.stdout.fnmatch_lines(["*reached for the network*example.com*"])


def test_loopback_is_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        for host in ("127.0.0.1", "localhost"):
            socket.create_connection((host, server.getsockname()[1]), timeout=5).close()


def test_a_python_that_a_test_starts_is_guarded() -> None:
    code = "import socket; socket.getaddrinfo('example.com', 443)"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert child.returncode == 1
    assert "NetworkRefusedError: the network is refused here" in child.stderr


def test_a_kernel_is_guarded(tmp_path: Path) -> None:
    cell = nbformat.v4.new_code_cell("import socket; socket.getaddrinfo('example.com', 443)")
    cell.metadata["tags"] = ["raises-exception"]
    done = notebooks.executed(nbformat.v4.new_notebook(cells=[cell]), tmp_path)
    assert done["cells"][0]["outputs"][0]["ename"] == "NetworkRefusedError"
