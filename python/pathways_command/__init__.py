"""The command `pathways`.

It is a separate package because most commands do not need Python: they are in libpathways.so, and `import pathways`,
which imports JAX, would take longer than they do.

Exit codes: 0 for success; 1 for failure, with a message that says why; 2 for a usage error.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

DOCTOR = "check this installation and show what is missing"
DESCRIPTION = f"""\
{DOCTOR[0].upper()}{DOCTOR[1:]}: versions, plugins, devices, memory; with a cluster, also its controller and workers."""
AGREE = ("jax", "jaxlib")  # packages whose versions must be the same in all processes of a cluster


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments[:1] == ["doctor"]:
        return _doctor(arguments[1:])
    worker = arguments[:1] == ["worker"]
    modules = _modules(arguments) if worker else []
    try:
        library = _prepare(worker=worker, modules=modules)
    except ImportError as error:
        what = "a module of --import" if modules else "a part of JAX's packages that workers need"
        print(f"pathways: {what} cannot be imported: {error}", file=sys.stderr)
        return 2
    except (OSError, AttributeError) as error:
        print(f"pathways: libpathways.so cannot be used: {error}; `pathways doctor` says more", file=sys.stderr)
        return 1
    environment = {
        "self": [sys.executable, "-m", "pathways_command"],
        "versions": {name: version for name in AGREE if (version := _version(name))},
        "imported": modules,
        "elsewhere": {"doctor": DOCTOR},
    }
    texts = [argument.encode("utf-8", "surrogateescape") for argument in arguments]
    sys.stdout.flush()
    return library.pathways_main(
        len(texts), (ctypes.c_char_p * (len(texts) + 1))(*texts), json.dumps(environment).encode()
    )


def _modules(arguments: Sequence[str]) -> list[str]:
    """Returns the modules of --import, as the library will read that option."""
    said = os.environ.get("PATHWAYS_IMPORT", "")
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if argument == "--import":
            said = following
        elif argument.startswith("--import="):
            said = argument.removeprefix("--import=")
    return said.replace(",", " ").split()


def _prepare(*, worker: bool, modules: Sequence[str]) -> ctypes.CDLL:
    """Loads the library; for a worker, with the FFI handlers of JAX and of modules."""
    if worker:
        # A worker serves the devices and is never a client of them.
        os.environ.pop("JAX_PLATFORMS", None)
        # XLA warns of each program that another worker compiled, with two lines of a kilobyte, because the processor
        # lacks something that is not a processor feature ("prefer-no-gather"). Clients get errors, not log lines.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    package = importlib.util.find_spec("pathways")
    places = list(package.submodule_search_locations or []) if package else []
    named = os.environ.get("PATHWAYS_LIBRARY") or os.path.join(places[0] if places else "", "libpathways.so")
    library = ctypes.CDLL(str(Path(named).absolute()))
    if worker:
        from pathways_command import _handlers

        _handlers.install(library, modules)
    library.pathways_main.restype = ctypes.c_int
    library.pathways_main.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p), ctypes.c_char_p]
    return library


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _doctor(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("pathways doctor", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--address", help="address of a cluster's controller [PATHWAYS_ADDRESS]")
    parser.add_argument("--cluster", metavar="NAME", help="a cluster on this machine [PATHWAYS_CLUSTER]")
    parser.add_argument("--dir", metavar="DIRECTORY", help="directory of the clusters of this machine [PATHWAYS_DIR]")
    parser.add_argument("--json", action="store_true", help="print the facts as JSON")
    asked = parser.parse_args(arguments)
    address = asked.address
    if address is None and _names_cluster(asked):
        place = [word for name in ("cluster", "dir") if (said := vars(asked)[name]) for word in (f"--{name}", said)]
        told = subprocess.run(
            [sys.executable, "-m", "pathways_command", "address", *place],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        if told.returncode != 0:
            return told.returncode  # it has printed why
        address = told.stdout.strip()
    from pathways import _doctor

    report = _doctor.examine(address)
    print(json.dumps(report.as_dict(), indent=2) if asked.json else report)
    return 0 if report.ok else 1


def _names_cluster(asked: argparse.Namespace) -> bool:
    """Returns whether to check a cluster of this machine: if one is named and no address is given."""
    if asked.cluster or asked.dir:
        return True
    from jax_plugins.pathways import config

    def said(name: str) -> bool:
        return bool(os.environ.get(f"PATHWAYS_{name.upper()}", "").strip()) or name in file

    try:
        file = config.read()
    except config.ConfigError:
        return False  # the report shows the error
    return said("cluster") and not said("address")
