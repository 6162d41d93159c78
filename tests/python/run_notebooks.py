"""Runs the notebooks of the examples, each in a kernel of its own; `make notebooks` keeps what they put out."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import nbclient
import nbformat

NOTEBOOKS = Path(__file__).parents[2] / "examples" / "notebooks"
HANG_SECONDS = 300  # a cell that takes so long hangs


def run(
    name: str, folder: Path, instead: dict[str, str] | None = None, address: str | None = None
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
    kept = {variable: os.environ.pop(variable) for variable in away if variable in os.environ} | {
        "PATH": os.environ["PATH"]
    }
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    if address:
        os.environ["PATHWAYS_ADDRESS"] = address
    try:
        client = nbclient.NotebookClient(
            notebook, timeout=HANG_SECONDS, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
        )
        client.execute()
    finally:
        os.environ.pop("PATHWAYS_ADDRESS", None)
        os.environ.update(kept)
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
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        # Cells print paths of the cluster, so its directory is the same wherever the notebooks are run.
        runtime = Path(tempfile.gettempdir()) / "notebooks"
        runtime.mkdir(mode=0o700)
        os.environ["XDG_RUNTIME_DIR"] = str(runtime)
        try:
            with tempfile.TemporaryDirectory() as folder:
                notebook = run(path.stem, Path(folder))
        finally:
            shutil.rmtree(runtime)
        nbformat.write(notebook, path)
        print("ran", path.relative_to(NOTEBOOKS.parents[1]))


if __name__ == "__main__":
    main()
