"""The tool that builds the static edition: all of it that needs no download."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tools import site
from tools.recorded_cells import WHY


def code(cell_id: str, source: str, *tags: str) -> dict[str, Any]:
    outputs = [{"output_type": "stream", "name": "stdout", "text": ["stored\n"]}]
    return {
        "cell_type": "code",
        "id": cell_id,
        "source": source,
        "metadata": {"tags": list(tags)},
        "outputs": outputs,
        "execution_count": 7,
    }


# --- notebooks


def test_a_cell_that_needs_what_a_page_lacks_is_shown_as_recorded() -> None:
    told = {"cell_type": "markdown", "id": "m", "metadata": {}, "source": "Some words."}
    cells = [told, code("first", "import os\n"), code("forks", "fork()\n", "needs-process")]
    cells.append(code("last", "print(1)", "nbval-ignore-output"))
    made = site.for_the_browser({"cells": cells})["cells"]
    assert made[0]["source"] == "Some words."
    assert made[1]["source"][0].startswith("import recorded_cells")
    assert made[1]["source"][1:] == ["import os\n"]
    assert made[2]["source"] == ["%%recorded needs-process forks\n", "fork()\n"]
    assert made[3]["source"] == "print(1)"


def test_nothing_that_was_computed_elsewhere_looks_as_if_the_page_had_computed_it() -> None:
    (made,) = site.for_the_browser({"cells": [code("first", "1 + 1")]})["cells"]
    assert made["outputs"] == []
    assert made["execution_count"] is None
    assert made["source"] == "1 + 1"  # and without a recorded cell, no import


def test_every_tagged_cell_of_the_book_has_an_output_to_show() -> None:
    recorded = site.recorded_outputs()
    assert recorded
    assert [cell_id for cell_id, outputs in recorded.items() if not outputs] == []


def test_every_need_that_a_tag_names_is_explained() -> None:
    tags = set()
    for path in site.notebook_paths():
        for cell in json.loads(path.read_text("utf-8"))["cells"]:
            tags |= set(cell["metadata"].get("tags", []))
    assert {tag for tag in tags if tag.startswith("needs-")} <= WHY.keys()


def test_the_front_page_links_to_each_chapter() -> None:
    links = list(site.chapter_links())
    assert len(links) == 16
    assert links[1] == (
        '<li value="1"><a href="lab/index.html?path=01_the_whole_idea.ipynb">The whole idea</a>'
        "</li>"
    )


# --- our modules


def test_the_wheel_holds_the_modules_and_the_data_but_no_second_vocabulary() -> None:
    names = [name for name, _ in site.our_files()]
    assert len(names) == len(set(names))
    assert {"harness.py", "chat_client.py", "exercises/ch01.py", "data/logs/errors.log"} <= {*names}
    assert "data/recorded/smollm2-135m-instruct.json" in names
    assert [name for name in names if re.search(r"[0-9a-f]{40}", name)] == []
    for name, content in site.our_files():
        if (site.ROOT / name).exists():
            assert content == (site.ROOT / name).read_bytes()


def test_the_wheel_is_whole_and_the_same_each_time(tmp_path: Path) -> None:
    first = site.our_wheel(tmp_path).read_bytes()
    path = site.our_wheel(tmp_path)
    assert path.read_bytes() == first
    with zipfile.ZipFile(path) as archive:
        (record,) = [name for name in archive.namelist() if name.endswith("/RECORD")]
        lines = archive.read(record).decode().splitlines()
        assert sorted(line.split(",")[0] for line in lines) == sorted(archive.namelist())
        for line in lines:
            name, digest, size = line.rsplit(",", 2)
            if name != record:
                content = archive.read(name)
                made = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
                assert (digest, int(size)) == (f"sha256={made.decode()}", len(content))


# --- Python for the browser


@pytest.fixture
def static(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a runtime's list of packages, and a cache in which every wheel lies already."""
    folder, cache = tmp_path / "static", tmp_path / "cache"
    folder.mkdir()
    cache.mkdir()

    def entry(name: str) -> dict[str, Any]:
        return {"name": name, "version": "1.0", "depends": [], "imports": [name], "sha256": "old"}

    names = {*site.FROM_PYODIDE, *(name for each in site.ALSO.values() for name in each)}
    listed = {name: entry(name) for name in {*names, "numpy"}}
    listed["httpx"]["depends"] = ["certifi"]
    whole = {"info": {"python": "3.14"}, "packages": listed}
    (folder / "pyodide-lock.json").write_text(json.dumps(whole), "utf-8")
    for name in {*listed, *site.FROM_INDEX}:
        version = site.pinned(name) if name in site.FROM_INDEX else "1.0"
        file = cache / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
        file.write_bytes(name.encode())
    monkeypatch.setattr(site, "CACHE", cache)
    return folder


def test_the_list_holds_what_is_used_with_the_checksums_of_what_is_there(static: Path) -> None:
    names = site.packages(static)
    listed = json.loads((static / "pyodide-lock.json").read_text("utf-8"))
    assert listed["info"] == {"python": "3.14"}
    assert sorted(listed["packages"]) == names
    assert "numpy" not in names
    assert {*site.FROM_INDEX, "httpx", "certifi", site.OURS.replace("_", "-")} <= {*names}
    for entry in listed["packages"].values():
        content = (static / entry["file_name"]).read_bytes()
        assert entry["sha256"] == hashlib.sha256(content).hexdigest()
        assert {*entry["depends"]} <= {*names}


def test_the_list_asks_no_other_host(static: Path) -> None:
    names = site.packages(static)
    listed = json.loads((static / "pyodide-lock.json").read_text("utf-8"))
    assert [one for one in listed["packages"].values() if "/" in one["file_name"]] == []
    told = site.configuration(names)["jupyter-config-data"]
    kernel = told["litePluginSettings"]["@jupyterlite/pyodide-kernel-extension:kernel"]
    assert kernel["disablePyPIFallback"] is True
    assert kernel["pyodideUrl"].startswith("./")
    assert "://" not in json.dumps(told)


def test_a_package_without_a_pin_ends_the_build_in_words() -> None:
    with pytest.raises(SystemExit, match=r"requirements.txt does not pin no-such-package"):
        site.pinned("no-such-package")


def test_without_npm_the_build_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "CACHE", tmp_path)
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(SystemExit, match=r"npm is missing: install Node"):
        site.runtime(tmp_path)
