"""The command `pathways`.

It is a separate package because most commands do not need Python: they are in libpathways.so, and `import pathways`,
which imports JAX, would take longer than they do.

Exit codes: 0 for success; 1 for failure, with a message that says why; 2 for a usage error.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import sys
from collections.abc import Sequence

DOCTOR = "check this installation and show what is missing"
AGREE = ("jax", "jaxlib")  # packages whose versions must be the same in all processes of a cluster
SERVE = {"controller", "worker"}  # the commands that are processes of a cluster


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments[:2] == ["help", "doctor"]:
        arguments = ["doctor", "--help"]
    if arguments[:1] == ["doctor"]:
        from pathways_command import _doctor

        return _doctor.main(DOCTOR, arguments[1:])
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
        "versions": _versions() if SERVE.intersection(arguments) else {},
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
    said = []
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if argument == "--import":
            said.append(following)
        elif argument.startswith("--import="):
            said.append(argument.removeprefix("--import="))
    return ",".join(said or [os.environ.get("PATHWAYS_IMPORT", "")]).replace(",", " ").split()


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
    library = ctypes.CDLL(os.path.abspath(named))
    if worker:
        from pathways_command import _handlers

        _handlers.install(library, modules)
    library.pathways_main.restype = ctypes.c_int
    library.pathways_main.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p), ctypes.c_char_p]
    return library


def _versions() -> dict[str, str]:
    """Returns the versions of the packages in which a cluster agrees, as far as they are installed."""
    import importlib.metadata  # here, since it takes as long as a command

    found = {}
    for package in AGREE:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found
