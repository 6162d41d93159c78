"""The backend "pathways" of this process: registered with JAX once, and created by JAX when it is first used.

Problems of the environment (no library, an old JAX) do not make `import pathways` fail, so that `pathways.doctor()` can
explain them. init(), devices() and the first use of JAX raise them; JAX never falls back to another backend silently.
"""

from __future__ import annotations

import atexit
import functools
import importlib.metadata
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax_plugins.pathways as plugin
from jax_plugins.pathways import places

from pathways import _native, _private
from pathways._errors import PathwaysError, failed_precondition, invalid_argument, not_found
from pathways._settings import WAIT, Settings, stock_cpu_devices

NAME = "pathways"
BESIDE = NAME + "_"  # and a platform: the backend of the session's devices of a further platform
AGREE = ("jax", "jaxlib")  # packages whose versions must be the same in all processes of a cluster
OLDEST_JAX = (0, 10)
# JAX's priority for plugins, above its CPU client (0) and below CUDA's (500). It matters only if jax_platforms is
# unset, and _take_platforms sets it.
PRIORITY = 400
EXIT_TIMEOUT_MS = 10_000
# Seconds between two checks whether a cluster has the devices; they double each time.
FIRST_PAUSE, LAST_PAUSE = 0.05, 1.0
# The codes for a controller that has too few devices, and for one that cannot be reached.
TOO_FEW, ABSENT = ("RESOURCE_EXHAUSTED",), ("UNAVAILABLE", "DEADLINE_EXCEEDED")

_lock = threading.RLock()
# All written under _lock, which is never taken while a lock of JAX's is held.
_settings = Settings()
_registered = False  # whether the plugin is registered with JAX
_declined = False  # whether the user chose other platforms
_closed = False  # whether shutdown() was called, and init() not since then
_problem: PathwaysError | None = None  # why the plugin could not be registered
_beside: set[str] = set()  # platforms whose backends are registered with JAX
# Numbers the sessions whose clients JAX makes, so that clients of further platforms, slices and the like find the right
# one: the process may have others, by the C API. Written under JAX's lock of its backends.
_family = 0


def _jax() -> Any:
    """Imports JAX."""
    try:
        import jax
    except ImportError as error:
        raise failed_precondition(
            f'JAX cannot be imported ({error}); install it with `pip install "jax>=0.10"`'
        ) from error
    if jax.__version_info__ < OLDEST_JAX:
        raise failed_precondition(
            f"jax {jax.__version__} is too old: expected 0.10 or newer; upgrade it with "
            '`pip install --upgrade "jax>=0.10"`'
        )
    return jax


def running() -> bool:
    """Returns whether JAX has created the client of this backend."""
    return _private.client(NAME) is not None


def _take_platforms(jax: Any) -> str | None:
    """Makes this backend JAX's default one, and adds the CPU client for host work (callbacks run there).

    Returns the user's choice if that excludes Pathways.
    """
    platforms = [name for name in plugin.chosen_platforms(jax) or [NAME] if not name.startswith(BESIDE)]
    if NAME not in platforms:
        return f"JAX_PLATFORMS={jax.config.jax_platforms}"
    at = platforms.index(NAME) + 1
    platforms[at:at] = [BESIDE + platform for platform in _platforms_beside()]
    if (name := getattr(jax.config, "jax_platform_name", "")) and name != NAME:
        return f"JAX_PLATFORM_NAME={name}"
    if "cpu" not in platforms:
        platforms.append("cpu")
    jax.config.update("jax_platforms", ",".join(platforms))
    return None


def _platforms_beside() -> tuple[str, ...]:
    """Returns the further platforms that the settings name."""
    try:
        return _settings.with_environment().beside
    except PathwaysError:
        return ()  # whatever makes the devices raises it


def _register_beside() -> None:
    """Registers a backend for each further platform that has none yet."""
    for platform in _platforms_beside():
        if platform not in _beside:
            _private.register_plugin(
                BESIDE + platform,
                PRIORITY - 1,
                str(_native.library_path()),
                functools.partial(_options_beside, platform),
                lambda factory: functools.partial(_make_beside, factory),
            )
            _beside.add(platform)


def _options_beside(platform: str) -> dict[str, Any]:
    return {"beside": platform, "family": _family}


def _make_beside(factory: Callable[[], Any]) -> Any:
    from pathways import _reshard

    client = factory()
    _private.add_name(client)
    _reshard.cross()
    return client


def register() -> None:
    """Registers the backend with JAX and makes it the default; does nothing the second time.

    If JAX has found the plugin by itself, jax_platforms has the user's value again once JAX has created its backends.

    Raises:
      PathwaysError: FAILED_PRECONDITION if JAX has already created its backends.
    """
    global _registered, _declined, _problem
    with _lock:
        if _registered:
            return
        try:
            jax = _jax()
        except PathwaysError as error:
            _problem = error
            return
        before = jax.config.jax_platforms
        if chosen := _take_platforms(jax):
            if not _declined:
                warnings.warn(
                    f"{chosen} leaves Pathways out, so JAX runs without it; "
                    "unset it, or set JAX_PLATFORMS=pathways,cpu.",
                    stacklevel=_outside(),
                )
            _declined = True
            return
        _declined = False
        if _private.are_backends_made():
            raise failed_precondition(
                "JAX has already made its devices, so Pathways came too late to be one of its backends; put "
                "`import pathways` before the first call that uses a device (jax.devices(), jnp.zeros(), …)",
            )
        try:
            _register_plugin(_put_back(jax, before) if plugin.found_by_jax else lambda: None)
            _register_beside()
            _registered, _problem = True, None
        except PathwaysError as error:
            _problem = error
            _private.register_backend(NAME, PRIORITY, _raise_problem)


def _put_back(jax: Any, before: str | None) -> Callable[[], None]:
    """Returns a function that restores jax_platforms. JAX has read it when it creates this backend, the first in it.

    It does nothing if the devices are GPUs or TPUs: with jax_platforms unset, JAX would look for those itself, and warn
    that they are missing.
    """
    ours = jax.config.jax_platforms

    def put_back() -> None:
        if jax.config.jax_platforms == ours and not (address() is None and _accelerated()):
            jax.config.update("jax_platforms", before)

    return put_back


def _accelerated() -> bool:
    driven = _native.info().get("plugin") or {}
    return driven.get("kind") in ("cuda", "tpu")


def _register_plugin(made: Callable[[], None]) -> None:
    # Not at the top: they import JAX and its packages.
    from pathways import _ffi, _partition, _reshard

    library = _native.load()
    _native.set_plugin_dirs(places.joined())
    path = str(_native.library_path())
    _private.register_plugin(
        NAME, PRIORITY, path, _client_options, lambda factory: functools.partial(_make_client, factory, made)
    )
    _ffi.install(library)
    _reshard.install()
    _partition.install()
    _native.set_locate(_not_users())
    _native.set_telling(tell)
    # After JAX's own and that of _ffi, so that it runs before them: work in flight ends while callbacks can still run.
    atexit.register(_at_exit, os.getpid())


def tell(text: str, always: bool = False) -> None:
    """Prints a line for people: to the logger `pathways`, at INFO, if it has a handler; otherwise to a terminal.

    always: also where standard error is no terminal.
    """
    logger = logging.getLogger("pathways")
    if logger.isEnabledFor(logging.INFO) and logger.hasHandlers():
        logger.info(text)
    elif sys.stderr is not None and (always or sys.stderr.isatty()):
        print(text, file=sys.stderr, flush=True)


def _make_client(factory: Callable[[], Any], made: Callable[[], None]) -> Any:
    from pathways import _ffi

    client = _when_there(factory, _settings.with_environment())
    _private.add_name(client)
    made()  # only after success: otherwise JAX would fall back to another backend at its next use
    # The plugin has just been loaded, and has received the FFI targets that were registered before.
    if refused := _ffi.refusals():
        _ffi.warn(refused)
    return client


def _when_there(make: Callable[[], Any], asked: Settings) -> Any:
    """Makes a client, once the cluster has the requested devices.

    It waits for a controller that does not answer only if the user set a time; otherwise a wrong address would be
    reported late.

    Raises:
      PathwaysError: after the wait, with what is missing.
    """
    if not asked.remote:
        return make()
    wait = WAIT if asked.wait is None else asked.wait
    missing = TOO_FEW if asked.wait is None else TOO_FEW + ABSENT
    begun, pause, told = time.monotonic(), FIRST_PAUSE, ""
    while True:
        try:
            return make()
        except RuntimeError as error:  # JAX's, with a text of the library
            failure = error if isinstance(error, PathwaysError) else PathwaysError.parse(str(error))
            if failure.code not in missing:
                raise
        left = begun + wait - time.monotonic()
        if left <= 0:
            raise PathwaysError(
                failure.code, f"{failure.message} (waited {wait:g} s; init(wait=seconds) or PATHWAYS_WAIT changes that)"
            )
        if failure.message != told:
            told = failure.message
            # A batch job's log is looked at as well, when the job does not go on.
            form = ".0f" if left >= 1 else ".1g"
            tell(f"waiting up to {left:{form}} s: {told}; Ctrl-C ends the wait", always=True)
        time.sleep(min(pause, left))
        pause = min(2 * pause, LAST_PAUSE)


def _raise_problem() -> None:
    assert _problem is not None
    raise _problem


@functools.cache
def _not_users() -> tuple[str, ...]:
    import jax
    import jaxlib
    import numpy

    files = (__file__, jax.__file__, jaxlib.__file__, numpy.__file__, os.__file__)
    return (*(str(Path(file).parent) + os.sep for file in files), "<frozen")


def _outside() -> int:
    """Returns the stacklevel of the first caller outside this package; like warnings, it skips the import system."""
    here, level, frame = str(Path(__file__).parent), 1, sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((here, "<frozen importlib")):
        frame = frame.f_back
        if frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
            level += 1
    return level


def _client_options() -> dict[str, Any]:
    """Returns the create options of the PJRT client. JAX calls this when it creates the client.

    JAX holds the lock of its backends during the call, and other functions here take that lock under ours. So this
    takes no lock of ours, and reads each variable once.
    """
    global _family
    closed, said = _closed, _settings
    if closed:
        raise failed_precondition("Pathways was shut down in this process; call pathways.init() to use it again")
    asked = said.with_environment()
    _native.set_cluster(asked.address, {name: importlib.metadata.version(name) for name in AGREE})
    if asked.address is not None:
        _family += 1
        options: dict[str, Any] = {"family": _family} | ({"elastic": 1} if asked.elastic else {})
        options |= {} if asked.devices is None else {"devices": asked.devices}
        return options | ({} if asked.platform is None else {"platform": asked.platform})
    options = {} if asked.memory_limit is None else {"memory_limit": asked.memory_limit}
    if asked.memory_wait is not None:
        options["memory_wait"] = str(asked.memory_wait)
    if asked.devices is not None:
        return options | {"devices": asked.devices}
    if _accelerated():
        return options  # all devices
    return options | {"devices": stock_cpu_devices(_jax())}


def init(
    address: Any = None,
    count: Any = None,
    memory_limit: Any = None,
    memory_wait: Any = None,
    wait: Any = None,
    elastic: Any = None,
    platform: Any = None,
    unknown: dict[str, Any] | None = None,
) -> None:
    asked = Settings.of_arguments(address, count, memory_limit, memory_wait, wait, elastic, platform, unknown or {})
    _settle(asked)
    if asked.wait is not None and not _declined and asked.with_environment().remote:
        devices()


def _settle(asked: Settings) -> None:
    """Stores the settings or, if JAX already runs, checks that it runs with them and has not lost its cluster."""
    global _settings, _closed
    with _lock:
        register()
        if _declined:
            return
        if _problem is not None:
            raise _problem
        asked.with_environment()
        if not running():
            if asked != Settings():
                _settings = asked
            _take_platforms(_jax())  # JAX reads it again after a shutdown
            _register_beside()
            _closed = False
            return
        if asked.address is not None and asked.address != _settings.with_environment().address:
            raise failed_precondition(
                f"pathways.init({asked.address!r}) comes too late: JAX already runs on other devices; call it before "
                "the first use of JAX, or call pathways.shutdown() first"
            )
        have = _private.client(NAME).device_count()
        if asked.devices is not None and asked.devices != have:
            raise failed_precondition(
                f"pathways.init(devices={asked.devices}) comes too late: JAX already runs on {have} Pathways devices; "
                "call it before the first use of JAX, or call pathways.shutdown() first"
            )
        platform = ",".join(_private.raw_platform(client) for client in clients())
        if asked.platform not in (None, platform):
            raise failed_precondition(
                f"pathways.init(platform={asked.platform!r}) comes too late: JAX already runs on devices of platform "
                f"{platform}; call it before the first use of JAX, or call pathways.shutdown() first"
            )
        _native.check_session()


def address() -> str | None:
    """Returns the address of the cluster whose devices this process has; None for this machine's devices."""
    return _settings.with_environment().address


def clients() -> list[Any]:
    """Returns the clients that JAX has made, one for each platform of the devices."""
    names = (NAME, *(BESIDE + platform for platform in _settings.with_environment().beside))
    return [client for client in map(_private.client, names) if client is not None]


def all_devices() -> list[Any]:
    """Returns the devices of all platforms, by their ids."""
    devices()
    return [device for client in clients() for device in client.devices()]


def devices(platform: str | None = None) -> list[Any]:
    with _lock:
        register()
        if _problem is not None:
            raise _problem
    jax = _jax()
    if _declined:
        raise failed_precondition(
            "JAX runs without Pathways because other platforms were chosen; unset JAX_PLATFORMS (and "
            "JAX_PLATFORM_NAME), or set JAX_PLATFORMS=pathways,cpu"
        )
    try:
        first = jax.devices(NAME)
    except RuntimeError as error:
        # JAX wraps the error of creating the client; the code is in the wrapped error.
        cause = error.__context__
        if isinstance(cause, PathwaysError):
            raise cause from None
        raise PathwaysError.parse(str(cause or error)) from error
    if platform is None:
        return first
    for client in clients():
        if _private.raw_platform(client) == platform:
            return client.devices()
    there = " and ".join(_private.raw_platform(client) for client in clients())
    raise not_found(
        f"there are no devices of platform {platform!r}, only of {there}; pathways.init(platform=...) names the "
        "platforms of a script's devices"
    )


def shutdown(timeout: float) -> None:
    global _closed
    if not timeout > 0:
        raise invalid_argument(f"timeout is {timeout!r}; expected a number of seconds above 0")
    with _lock:
        if not _registered or _closed:
            return
        _closed = True
        was_running = running()
    try:
        _native.shutdown(int(timeout * 1000))
    finally:
        if was_running:
            _forget_clients()


def _forget_clients() -> None:
    """Makes JAX drop its clients, so that the next use of it makes new ones."""
    import jax.extend.backend

    from pathways import _reshard

    for name in (
        "pathways._program",
        "pathways._together",
        "pathways._arrow",
    ):  # slow to import, and may not have been needed
        if name in sys.modules:
            sys.modules[name].forget()
    _reshard.forget()

    try:
        jax.extend.backend.clear_backends()
    except Exception:
        # It first waits for the tokens of effects in flight, which raise if their work was cut off.
        _private.forget_effects()
        jax.extend.backend.clear_backends()


# seconds in which other threads that dispatch come to the library, where they stay from then on
THREADS_COME = 0.05


def _at_exit(process: int) -> None:
    if os.getpid() != process:
        return  # a forked child: the library belongs to its parent
    try:
        _native.leave(EXIT_TIMEOUT_MS)
    except PathwaysError as error:
        print(f"pathways: work was cut off at exit: {error}", file=sys.stderr)
    finally:
        if threading.active_count() > 1:  # one that takes the GIL in JAX's C++ while Python finalizes ends the process
            time.sleep(THREADS_COME)
        _native.set_locate(None)  # Python is shutting down
        _native.set_telling(None)
        sys.modules["pathways._partition"].remove()
