"""The scripted provider counts as the figures do, and never without its vocabulary."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

import scripted_provider
from scripted_provider import (
    Message,
    Provider,
    asks,
    call,
    compact_json,
    count_messages,
    count_tokens,
    encoding,
)
from tests.provider_requests import (
    SECOND,
    TOOL,
    USER,
    answered,
    ask,
    request,
)
from tests.support import ROOT

# --- counting -------------------------------------------------------------------------------------


def plain_rule(messages: list[Message]) -> int:
    """The rule of the figures, without any shortcut, with tiktoken itself."""
    encoding()  # tells tiktoken where the vocabulary lies
    whole = json.dumps(messages, ensure_ascii=False, separators=(",", ":"))
    return len(tiktoken.get_encoding("o200k_base").encode(whole, disallowed_special=()))


SIGNS = ["{", '"', '{"', '"}', "},{", ",", "[", "]", ":", "\\", "/", "'", "'s", " ", "\n", "\r\n"]
MARKS = ["\u0301", "\u200d", "\u2028", "\x85", "\xa0", "é", "ß", "漢", "🙂", "🏽", "1234", "Role"]
SPECIAL = ["<|endoftext|>", "<|endofprompt|>", "<|im_start|>", "role", '{"role"']
PIECES = st.sampled_from([*SIGNS, *MARKS, *SPECIAL, "\ud83d", "\udc97"])
CONTENT = st.lists(PIECES | st.text(max_size=4), max_size=12).map("".join)
ANY_MESSAGE = st.one_of(
    st.builds(lambda content: {"role": "user", "content": content}, CONTENT),
    st.builds(lambda content: {"content": content, "role": "user"}, CONTENT),
    st.builds(lambda content: {"role": content}, CONTENT),
    st.builds(lambda key, content: {key: content}, CONTENT, CONTENT),
    st.builds(lambda key, content: {"role": "user", key: content}, CONTENT, CONTENT),
    st.builds(
        lambda name, arguments, content: {
            "role": "assistant",
            "content": content,
            "tool_calls": [call("c1", name, arguments)],
        },
        CONTENT,
        CONTENT,
        CONTENT | st.none(),
    ),
    st.just({}),
)


@settings(max_examples=500)
@given(st.lists(ANY_MESSAGE, max_size=6))
def test_counting_message_by_message_equals_the_plain_rule(messages: list[Message]) -> None:
    assert count_messages(messages) == plain_rule(messages)


@pytest.mark.parametrize("special", SPECIAL)
def test_what_looks_like_a_special_token_is_counted_as_text(special: str) -> None:
    messages = [{"role": "user", "content": special}]
    assert count_messages(messages) == plain_rule(messages)
    assert count_tokens("<|endoftext|>") > 1


@pytest.mark.parametrize("where", ["content", "name", "arguments"])
def test_special_tokens_anywhere_are_answered_and_counted(where: str) -> None:
    special = "<|endoftext|><|endofprompt|>"
    fields = {"content": "done", "name": "now", "arguments": "{}"}
    fields[where] = json.dumps({"a": special}) if where == "arguments" else special
    asked = asks(call("c1", fields["name"], fields["arguments"]))
    messages = [USER, asked, answered("c1", fields["content"])]
    status, body = ask(Provider(), request(*messages))
    assert (status, body["usage"]["prompt_tokens"]) == (200, plain_rule(messages))


def test_usage_is_the_rule_of_the_figures() -> None:
    usage = ask(Provider(), request(tools=[TOOL]))[1]["usage"]
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "list_files", "arguments": "{}"}}
    ]
    assert usage["prompt_tokens"] == plain_rule([USER]) + count_tokens(compact_json([TOOL]))
    assert usage["completion_tokens"] == count_tokens(compact_json(calls))
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    said = ask(Provider(), request(*SECOND, model="once"))[1]["usage"]["completion_tokens"]
    assert said == count_tokens("errors.log mentions a timeout.") + count_tokens('""')


def test_counting_can_be_left_out() -> None:
    usage = ask(Provider(count=False), request())[1]["usage"]
    assert set(usage.values()) == {0}


def test_json_is_written_as_javascript_writes_it() -> None:
    value: dict[str, Any] = {"b": 'größer\u2028 "🙂"', "a": [1, True, None, {}]}
    assert compact_json(value) == '{"b":"größer\u2028 \\"🙂\\"","a":[1,true,null,{}]}'


# --- the vocabulary -------------------------------------------------------------------------------


def source_of_tiktokens() -> str:
    """tiktoken's own definition of the encoding."""
    return inspect.getsource(importlib.import_module("tiktoken_ext.openai_public").o200k_base)


def test_the_checksum_is_tiktokens_own() -> None:
    assert f'expected_hash="{scripted_provider.VOCABULARY_SHA256}"' in source_of_tiktokens()


def test_the_file_has_the_name_under_which_tiktoken_looks_for_it() -> None:
    (url,) = re.findall(r'"(https://[^"]+o200k_base\.tiktoken)"', source_of_tiktokens())
    assert scripted_provider.VOCABULARY.name == hashlib.sha1(url.encode()).hexdigest()
    assert scripted_provider.VOCABULARY.is_file()


@pytest.fixture
def vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place for another vocabulary, forgotten with the test. The network guard is on."""
    path = tmp_path / scripted_provider.VOCABULARY.name
    monkeypatch.setattr(scripted_provider, "VOCABULARY", path)
    scripted_provider.encoding.cache_clear()
    scripted_provider._count_part.cache_clear()
    yield path
    scripted_provider.encoding.cache_clear()


DAMAGED: list[Callable[[Path], object]] = [
    lambda path: None,
    lambda path: path.write_bytes(b""),
    lambda path: path.write_bytes(b"IQ== 0\n"),
    lambda path: path.mkdir(),
]


@pytest.mark.parametrize("damage", DAMAGED, ids=["missing", "empty", "damaged", "a folder"])
def test_a_damaged_vocabulary_is_one_clear_line_and_is_left_alone(
    vocabulary: Path, damage: Callable[[Path], object]
) -> None:
    """tiktoken itself would delete the file and ask the network for another."""
    damage(vocabulary)
    before = sorted(vocabulary.parent.iterdir())
    status, body = ask(Provider(), request())
    line = (
        f"The vocabulary data/{vocabulary.name} is missing or damaged. "
        "Restore it: git checkout -- data"
    )
    assert (status, body["error"]["message"]) == (500, line)
    assert sorted(vocabulary.parent.iterdir()) == before


def test_a_vocabulary_that_was_restored_is_taken(vocabulary: Path) -> None:
    assert ask(Provider(), request())[0] == 500
    original = ROOT / "data" / vocabulary.name
    vocabulary.write_bytes(original.read_bytes())
    assert ask(Provider(), request())[0] == 200
