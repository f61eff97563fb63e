"""Write, run, check and lint the notebooks of the course. Names are files, or as much of a name as is unique.

    python scripts/notebooks.py new 21_slots       # a skeleton: metadata, the first cell, the closing sections
    python scripts/notebooks.py run 21             # execute it in place, in this Python; real outputs, scrubbed
    python scripts/notebooks.py check 21           # nbval, strictly: does each cell print what is committed?
    python scripts/notebooks.py lint 21            # form (see tests/notebooks/form.py); no name: all notebooks
    python scripts/notebooks.py scrub 21           # only take away what would make a difference at every run
    python scripts/notebooks.py html --to DIR 21   # one static page each, every picture in it, no host asked
    python scripts/notebooks.py lab                # JupyterLab on the first one; options go to JupyterLab

What goes into a cell (tags are those of nbval):

* Checked text: everything a cell prints, and the text form of what its last expression shows. Pictures are not
  compared, so every picture must say the same as text (the views of nanovllm.viz do).
* "nbval-ignore-output": the cell runs and its output is not compared. For times, device names, library versions.
* "nbval-skip": not run by `check`; for what needs a GPU. `run` skips it too and keeps its committed output.
* "exercise", with the cell metadata {"nanovllm": {"exercise": "2.2"}}: a demonstration inside `with your("2.2"):`.
  It leaves nothing behind that later cells need (objects of its own), so that an unfinished exercise fails there alone.
* Prints one line after another, not a dict of sets; no progress bar: generate(..., use_tqdm=False).
* A widget (StepperWidget, predict, card) is the last expression of its cell. Its committed form is its text and a
  static picture; the live widget takes their place when the cell is run.
"""

import argparse
import asyncio
import mimetypes
import os
import re
import subprocess
import sys
from base64 import b64encode
from pathlib import Path

import nbformat
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "notebooks"
CELL_SECONDS = 120
CHECK = (
    "--nbval --nbval-current-env --nbval-cell-timeout=120 --nbval-sanitize-with=notebooks/nbval.cfg -p no:cacheprovider"
).split()
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
IMAGE = re.compile(r"!\[[^\]]*\]\((?!\w+:)([^)\s]+)\)")  # of a file: no URL, no attachment
KEPT_METADATA = {"tags", "nanovllm"}
WIDGET = "application/vnd.jupyter.widget-view+json"

FIRST_CELL = """\
# Installs what is missing here, in Colab for example. Where everything is there, it installs nothing.
import importlib.util
import os
import pathlib
import site
import sysconfig

if any(importlib.util.find_spec(name) is None for name in ("nanovllm", "ipywidgets", "graphviz", "matplotlib")):
    root = pathlib.Path("..").resolve()
    checkout = (root / "pyproject.toml").exists()
    source = f"{root}[notebooks]" if checkout else os.environ.get("NANOVLLM_SOURCE")
    if not source:
        raise RuntimeError(
            "nanovllm is not installed here: open this notebook in its checkout, or set NANOVLLM_SOURCE to what pip "
            'should install, such as "nanovllm[notebooks] @ git+https://..." or the path of a wheel'
        )
    options = "--quiet -e" if checkout else "--quiet"
    %pip install {options} "{source}"
    site.addsitedir(sysconfig.get_path("purelib"))  # an editable install is found without a restart

from nanovllm.course.notebook import ready

ready()"""

SKELETON = (
    ("markdown", "# {title}\n\nA question.\n\nAfter this notebook you can explain ..."),
    ("code", FIRST_CELL),
    ("markdown", "## The smallest case\n\n..."),
    ("markdown", "## What can go wrong\n\n..."),
    ("markdown", "## Checklist\n\nYou can now explain\n\n- ..."),
    ("markdown", "## Exercises\n\n..."),
)


def find(names: list[str]) -> list[Path]:
    """The notebooks of these names; all of them for none."""
    known = sorted(FOLDER.glob("*.ipynb"))
    if not names:
        return known
    found = []
    for name in names:
        path = Path(name)
        hits = (
            [path] if path.suffix == ".ipynb" and path.exists() else [k for k in known if k.stem.startswith(path.stem)]
        )
        if len(hits) != 1:
            said = ", ".join(k.stem for k in hits or known)
            raise SystemExit(f"{name!r} is the beginning of {len(hits)} notebooks; choose from: {said}")
        found.append(hits[0].resolve())
    return found


def read(path: Path) -> NotebookNode:
    """The notebook in the file."""
    return nbformat.read(path, as_version=4)


def scrub(book: NotebookNode) -> NotebookNode:
    """Take away whatever differs from run to run or from editor to editor; the static form stays of a widget."""
    book.metadata = nbformat.from_dict(METADATA)
    book.nbformat, book.nbformat_minor = 4, 5
    number = 0
    for index, cell in enumerate(book.cells):
        cell.id = f"c{index:02}"
        cell.metadata = nbformat.from_dict({k: v for k, v in cell.metadata.items() if k in KEPT_METADATA and v})
        if cell.cell_type != "code":
            continue
        number += 1
        cell.execution_count = number
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = number
            if "metadata" in output:
                output.metadata = nbformat.from_dict({})
            if "data" in output:
                output.data.pop(WIDGET, None)
    return book


def write(book: NotebookNode, path: Path) -> None:
    """Write it, scrubbed."""
    nbformat.validate(scrub(book))
    path.write_text(nbformat.writes(book) + "\n", encoding="utf-8")


def own_kernel_first() -> None:
    """Let the kernel "python3" be this Python, whatever other environments have registered under that name."""
    search = [str(Path(sys.prefix) / "share" / "jupyter"), os.environ.get("JUPYTER_PATH", "")]
    os.environ["JUPYTER_PATH"] = os.pathsep.join(filter(None, search))


def one_thread() -> None:
    """The model is tiny, and several kernels on few cores would wait for each other's threads."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def execute(path: Path) -> NotebookNode:
    """Run every cell that is not skipped in a fresh kernel; raises what a cell raises."""
    from nbclient import NotebookClient

    own_kernel_first()
    one_thread()
    book = read(path)
    skipped = [cell for cell in book.cells if "nbval-skip" in cell.metadata.get("tags", [])]
    kept = [(cell.source, cell.get("outputs")) for cell in skipped]
    for cell in skipped:
        cell.source = ""
    client = NotebookClient(
        book,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
    )
    asyncio.run(client.async_execute())
    for cell, (source, outputs) in zip(skipped, kept, strict=True):
        cell.source, cell.outputs = source, outputs
    return book


def new(paths: list[str]) -> int:
    """A skeleton for each name."""
    for name in paths:
        path = FOLDER / f"{Path(name).stem}.ipynb"
        if path.exists():
            raise SystemExit(f"{path.name} is there already")
        title = path.stem.partition("_")[2].replace("_", " ").capitalize()
        make = {"markdown": nbformat.v4.new_markdown_cell, "code": nbformat.v4.new_code_cell}
        cells = [make[kind](text.replace("{title}", title)) for kind, text in SKELETON]
        write(nbformat.v4.new_notebook(cells=cells), path)
        print(path.name)
    return 0


def run(paths: list[Path]) -> int:
    """Execute each in place."""
    for path in paths:
        write(execute(path), path)
        print(f"{path.name} ran")
    return 0


def check(paths: list[Path]) -> int:
    """nbval on all of them."""
    one_thread()
    return subprocess.run([sys.executable, "-m", "pytest", *CHECK, *map(str, paths)], cwd=ROOT).returncode


def lint(paths: list[Path]) -> int:
    """What the form lacks, one line each."""
    sys.path.insert(0, str(ROOT))
    from tests.notebooks.form import faults

    found = [f"{path.name}: {fault}" for path in paths for fault in faults(path)]
    print("\n".join(found) or f"{len(paths)} notebooks are in form")
    ruff = [
        subprocess.run([sys.executable, "-m", "ruff", *command, "--quiet", *map(str, paths)], cwd=ROOT).returncode
        for command in (["check"], ["format", "--check"])
    ]
    return 1 if found or any(ruff) else 0


def with_images(book: NotebookNode, folder: Path) -> NotebookNode:
    """Take the image files that the texts link, relative to `folder`, into the notebook as attachments."""
    for cell in book.cells:
        if cell.cell_type != "markdown":
            continue
        for link in dict.fromkeys(IMAGE.findall(cell.source)):
            file, kind = folder / link, mimetypes.guess_type(link)[0]
            if not file.is_file() or kind is None:
                raise SystemExit(f"a text shows {link}, and {file.resolve()} is no picture that is there")
            cell.setdefault("attachments", {})[link] = {kind: b64encode(file.read_bytes()).decode()}
            cell.source = cell.source.replace(f"]({link})", f"](attachment:{link})")
    return book


def to_html(path: Path) -> str:
    """The notebook as one static page, complete wherever it lies: all pictures in it, no live widgets."""
    from nbconvert import HTMLExporter
    from traitlets.config import Config

    priority = ["text/html", "image/svg+xml", "image/png", "text/markdown", "text/plain"]
    exporter = HTMLExporter(config=Config({"NbConvertBase": {"display_data_priority": priority}}))
    exporter.require_js_url = exporter.jquery_url = exporter.mathjax_url = ""
    page, _ = exporter.from_notebook_node(with_images(read(path), path.parent))
    return str(page)


def html(paths: list[Path], to: Path) -> int:
    """A page for each."""
    to.mkdir(parents=True, exist_ok=True)
    for path in paths:
        (to / f"{path.stem}.html").write_text(to_html(path), encoding="utf-8")
        print(to / f"{path.stem}.html")
    return 0


def lab(options: list[str]) -> int:
    """JupyterLab on the first notebook, with this Python as its kernel. Trusted, the notebooks show their pictures."""
    from nbformat.sign import NotebookNotary

    own_kernel_first()
    notary = NotebookNotary()
    for path in find([]):
        notary.sign(read(path))
    where = ["--LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb", f"--ServerApp.root_dir={ROOT}"]
    return subprocess.run([sys.executable, "-m", "jupyterlab", *where, *options], cwd=ROOT).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("new", "run", "check", "lint", "scrub", "html", "lab"))
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--to", type=Path, default=Path("html"), metavar="DIR", help="of html (default: %(default)s)")
    args, options = parser.parse_known_intermixed_args()
    if args.command == "lab":
        return lab(args.names + options)
    if options:
        parser.error(f"unknown options: {' '.join(options)}")
    if args.command == "new":
        return new(args.names)
    paths = find(args.names)
    if args.command == "html":
        return html(paths, args.to)
    if args.command == "scrub":
        for path in paths:
            write(read(path), path)
        return 0
    return {"run": run, "check": check, "lint": lint}[args.command](paths)


if __name__ == "__main__":
    sys.exit(main())
