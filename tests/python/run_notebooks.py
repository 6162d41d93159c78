"""Runs the notebooks of the examples, each in a kernel of its own; `make notebooks` keeps what they put out.

With names of notebooks as arguments, it runs those alone.
"""

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbclient
import nbformat

NOTEBOOKS = Path(__file__).parents[2] / "examples" / "notebooks"
HANG_SECONDS = 300  # a cell that takes so long hangs

# Notebooks that another one, while it runs, asks its reader to open.
ASKED_FOR = {"sharing": "sharing_class"}


def run_all(
    name: str, folder: Path, instead: dict[str, dict[str, str]] | None = None
) -> dict[str, nbformat.NotebookNode]:
    """Runs a notebook and the one that it asks for, each with its own texts instead of some; returns them by name."""
    instead, other, beside = instead or {}, ASKED_FOR.get(name), {}
    with ThreadPoolExecutor() as pool:

        def open_other(cell, **_):
            if cell.cell_type == "code" and f"{other}.ipynb" in cell.source:
                beside[other] = pool.submit(run, other, folder, instead.get(other))

        try:
            ran = {name: run(name, folder, instead.get(name), before_cell=open_other)}
        finally:  # where the other fails, this one waits for it in vain
            others = {other: running.result() for other, running in beside.items()}
    return ran | others


def run(
    name: str,
    folder: Path,
    instead: dict[str, str] | None = None,
    address: str | None = None,
    before_cell: Callable[..., None] | None = None,
) -> nbformat.NotebookNode:
    """Runs a notebook in a folder and returns it with what its cells put out, each stream in one piece.

    The environment is the caller's, but that devices are the notebook's own business, or those of the cluster at an
    address, and its shell commands are those of this installation. What runs has other texts instead of some; the
    result has the notebook's own.
    """
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    metadata = dict(notebook.metadata)  # a kernel adds its version
    sources = [cell.source for cell in notebook.cells]
    for old, new in (instead or {}).items():
        assert any(old in source for source in sources), f"no cell of {name} has {old}"
        for cell in notebook.cells:
            cell.source = cell.source.replace(old, new)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.update(outputs=[], execution_count=None)
    away = ("PATHWAYS_ADDRESS", "PATHWAYS_DEVICES", "JAX_PLATFORMS", "XLA_FLAGS")
    variables = {variable: value for variable, value in os.environ.items() if variable not in away}
    variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{variables['PATH']}"
    if address:
        variables["PATHWAYS_ADDRESS"] = address
    client = nbclient.NotebookClient(
        notebook,
        timeout=HANG_SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        on_cell_execute=before_cell,
    )
    asyncio.run(client.async_execute(env=variables))  # its own loop, also in a thread
    notebook.metadata.update(metadata)
    for cell, source in zip(notebook.cells, sources, strict=True):
        cell.source = source
        cell.metadata.pop("execution", None)  # when each cell ran
        if cell.cell_type == "code":
            cell.outputs = _in_one_piece(cell.outputs)
    return notebook


def _in_one_piece(outputs):
    """Joins what a cell printed to one stream: it arrives in pieces, and may be cut anywhere."""
    joined = []
    for output in outputs:
        last = joined[-1] if joined else None
        if output.output_type == "stream" and last and last.output_type == "stream" and last.name == output.name:
            last.text += output.text
        else:
            joined.append(output)
    return joined


def main():
    names = {path.stem for path in NOTEBOOKS.glob("*.ipynb")} - set(ASKED_FOR.values())
    for name in sys.argv[1:] or sorted(names):
        # Cells print paths of the cluster, so its directory is the same wherever the notebooks are run.
        runtime = Path(tempfile.gettempdir()) / "notebooks"
        runtime.mkdir(mode=0o700)
        os.environ["XDG_RUNTIME_DIR"] = str(runtime)
        try:
            with tempfile.TemporaryDirectory() as folder:
                notebooks = run_all(name, Path(folder))
        finally:
            shutil.rmtree(runtime)
        for each, notebook in notebooks.items():
            nbformat.write(notebook, NOTEBOOKS / f"{each}.ipynb")
            print("ran", f"notebooks/{each}.ipynb")


if __name__ == "__main__":
    main()
