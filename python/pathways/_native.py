"""The C interface of libpathways.so, by ctypes.

A process loads one library and never unloads it, because it contains a Go runtime.
Every call here releases the GIL while it runs. A child made by ``fork()`` after the
library was loaded cannot use it; each call there fails with an error.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pathways._errors import PathwaysError, failed_precondition, not_found

TELLING = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p)

_lock = threading.Lock()
_telling: Any = None  # the callback of the library, kept alive
_library: ctypes.CDLL | None = None  # guarded by _lock; set once


def library_path() -> Path:
    """Returns the path of libpathways.so: PATHWAYS_LIBRARY, else the one in the package."""
    named = os.environ.get("PATHWAYS_LIBRARY")
    return Path(named).absolute() if named else Path(__file__).with_name("libpathways.so").absolute()


def load() -> ctypes.CDLL:
    """Loads the library, once.

    Raises:
      PathwaysError: NOT_FOUND if there is no such file, FAILED_PRECONDITION if it is not an Open Pathways library.
    """
    global _library
    with _lock:
        if _library is None:
            _library = _open(library_path())
        return _library


def _open(path: Path) -> ctypes.CDLL:
    if not path.is_file():
        if os.environ.get("PATHWAYS_LIBRARY"):
            raise not_found(
                f"PATHWAYS_LIBRARY names {path}, and there is no such file; unset it to use the library of the package"
            )
        raise not_found(
            f"{path} is missing; install the package again (pip install --force-reinstall openpathways), or in a "
            "source tree run `make build`"
        )
    try:
        library = ctypes.CDLL(str(path))
        # Texts are declared as void pointers, since each is freed after it is read.
        declare(
            library,
            ("pathways_plugin_dirs", ctypes.c_int, [ctypes.c_char_p]),
            ("pathways_set_cluster", ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_char_p]),
            ("pathways_lost", ctypes.c_void_p, []),
            ("pathways_moments", ctypes.c_void_p, [ctypes.c_uint64, ctypes.c_int64]),
            ("pathways_info", ctypes.c_void_p, []),
            ("pathways_stats", ctypes.c_void_p, []),
            ("pathways_status", ctypes.c_void_p, []),
            ("pathways_trace_start", ctypes.c_void_p, [ctypes.c_char_p]),
            ("pathways_trace_stop", ctypes.c_void_p, []),
            ("pathways_shutdown", ctypes.c_void_p, [ctypes.c_int64]),
            ("pathways_exit", ctypes.c_void_p, [ctypes.c_int64]),
            ("pathways_locate_python", None, [ctypes.c_char_p]),
            ("pathways_set_telling", None, [TELLING]),
            ("pathways_free", None, [ctypes.c_void_p]),
            ("pathways_refused", None, []),
        )
        _ = library.GetPjrtApi, library.pathways_ffi_register
    except (OSError, AttributeError) as error:
        raise failed_precondition(
            f"{path} cannot be used as libpathways.so of this Python package: {error}; install the package again for "
            "this machine (pip install --force-reinstall openpathways), or in a source tree run `make build`"
        ) from None
    return library


def declare(library: ctypes.CDLL, *functions: tuple[str, Any, list[Any]]) -> None:
    """Tells ctypes of functions of the library: each one's name, result and arguments."""
    for name, result, arguments in functions:
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments


def _text(library: ctypes.CDLL, pointer: int | None) -> str | None:
    """Reads and frees a text that the library returned; None for NULL."""
    if not pointer:
        return None
    try:
        return ctypes.string_at(pointer).decode("utf-8", "replace")
    finally:
        library.pathways_free(pointer)


def _raise(text: str | None) -> None:
    if text is not None:
        load().pathways_refused()
        raise PathwaysError.parse(text)


def check(refusal: int | None) -> None:
    """Raises the error that a function of the library returned as a text, and frees it; None means success."""
    if refusal:
        _raise(_text(load(), refusal))


def text(pointer: ctypes.c_void_p) -> str:
    """Reads and frees a text that the library returned; "" for NULL."""
    return _text(load(), pointer.value) or ""


def set_plugin_dirs(joined: bytes) -> None:
    """Sets the directories in which to search for a PJRT plugin. It has an effect only before the first client."""
    if load().pathways_plugin_dirs(joined) != 0:
        raise failed_precondition("libpathways.so did not take the list of package directories")


def set_cluster(address: str | None, versions: dict[str, str]) -> None:
    """Sets the devices of the next PJRT client: those of the cluster at address or, for None, this process's.

    versions holds the versions on which the processes of a cluster must agree, such as {"jax": "0.12.0"}.

    Raises:
      PathwaysError: FAILED_PRECONDITION while arrays or clients of the other kind exist.
    """
    library = load()
    _raise(_text(library, library.pathways_set_cluster((address or "").encode(), json.dumps(versions).encode())))


def check_session() -> None:
    """Raises the error of the session on a cluster, if it is lost."""
    check(load().pathways_lost())


def moments(after: int, timeout_ms: int) -> dict[str, Any]:
    """Returns what has happened to sessions after the moment of a number: last, moments. It waits up to the timeout."""
    library = load()
    return json.loads(_text(library, library.pathways_moments(after, timeout_ms)) or "{}")


def info() -> dict[str, Any]:
    """Returns the library's description of itself and of plugins: version, go, pjrt, plugin, candidates, error."""
    library = load()
    return json.loads(_text(library, library.pathways_info()) or "{}")


def stats() -> dict[str, Any]:
    """Returns counters of the running system."""
    library = load()
    return json.loads(_text(library, library.pathways_stats()) or "{}")


def status() -> dict[str, Any]:
    """Returns the report on the sessions that have devices of this process."""
    library = load()
    text = _text(library, library.pathways_status()) or ""
    if not text.startswith("{"):
        _raise(text)
    return json.loads(text)


def set_locate(others: Iterable[str] | None) -> None:
    """Makes errors name the calling thread's innermost line whose file does not begin with one of these paths, nor
    belongs to a package installed there. With None, errors name no line."""
    load().pathways_locate_python(None if others is None else os.fsencode("\n".join(others)))


def set_telling(tell: Callable[[str], None] | None) -> None:
    """Sets the function that is called with a line for the user when something takes long; None means no function."""
    global _telling

    def telling(line: bytes) -> int:
        try:
            tell(line.decode(errors="replace"))
        except KeyboardInterrupt:
            return 1
        except Exception:  # a failure to inform the user must not become an error
            return 0
        return 0

    function = TELLING(telling) if tell is not None else TELLING()
    load().pathways_set_telling(function)
    _telling = function


def trace_start(path: str) -> None:
    """Starts to write a trace. Raises PathwaysError."""
    library = load()
    _raise(_text(library, library.pathways_trace_start(os.fsencode(path))))


def trace_stop() -> None:
    """Ends the trace and closes its file. Raises PathwaysError."""
    library = load()
    _raise(_text(library, library.pathways_trace_stop()))


def shutdown(timeout_ms: int) -> None:
    """Stops submission, waits up to the timeout for work in flight, and frees everything. Raises PathwaysError."""
    if _library is not None:
        _raise(_text(_library, _library.pathways_shutdown(timeout_ms)))


def leave(timeout_ms: int) -> None:
    """Ends the process's work at exit. It waits only for effects: other results can no longer be read. Raises
    PathwaysError."""
    if _library is not None:
        _raise(_text(_library, _library.pathways_exit(timeout_ms)))
