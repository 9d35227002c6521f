"""For every pytest run, `pytest --nbval notebooks` included: the network is refused.

Fixtures are in tests/conftest.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests import no_network
from tools.notebooks import READER_DELAY_S


def pytest_configure() -> None:
    no_network.install()
    no_network.install_in_children()
    # Nobody sits at the buttons: the scripted reader acts, and does not keep the tests waiting.
    os.environ.setdefault("WORKBOOK_READER_DELAY_S", READER_DELAY_S)
    # Stored outputs are those without a model; whoever has one running tests without it too.
    for name in ("LLM_BASE_URL", "LLM_MODEL", "LLM_API_KEY"):
        os.environ.pop(name, None)


@pytest.fixture(autouse=True)
def _network_refused() -> Iterator[None]:
    """Fail a test whose code reached for the network, even if it caught the refusal."""
    before = len(no_network.refused)
    yield
    after = no_network.refused[before:]
    assert not after, f"reached for the network: {after}"
