"""Open Pathways: one Python process drives every accelerator, with ordinary JAX.

    import pathways          # before the first use of JAX
    import jax

    pathways.init(devices=8) # optional: PATHWAYS_DEVICES=8 does the same
    print(jax.devices())

Importing this package registers the backend ``pathways`` with JAX and makes it the default backend of the process. If
JAX_PLATFORMS excludes it, it warns once and does nothing. JAX makes the devices at its first use: all accelerators of
this machine or, on a CPU, as many as ``init(devices=n)`` or PATHWAYS_DEVICES sets. By default that is JAX's own number
(``jax_num_cpu_devices``, else ``--xla_force_host_platform_device_count`` in XLA_FLAGS, else 1).

Environment variables:

- PATHWAYS_ADDRESS: the cluster to use.
- PATHWAYS_WAIT: seconds to wait for the cluster.
- PATHWAYS_DEVICES: number of devices on this machine's CPU; for a cluster, use ``init(devices=n)``.
- PATHWAYS_CONFIG: a file with lines such as ``wait = "1m"``, for those of the variables above that are not set. An
  invalid line is an error.
- PATHWAYS_PLUGIN: path of a PJRT plugin.
- PATHWAYS_PLUGIN_DIRS: further directories to search for packaged plugins.
- PATHWAYS_LIBRARY: path of libpathways.so, instead of the one in the package.
- PATHWAYS_BATCH: ``false`` sends every call to a cluster separately, even if several are queued.
- PATHWAYS_KEEP_MEMORY: ``false`` returns memory of CPU devices to the system as soon as an array is deleted.

A child process made by ``fork()`` cannot use the devices of its parent; each call there raises. Start processes with
the ``spawn`` method instead. ``pathways.doctor()`` checks the installation.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TextIO

from pathways import _backend, _native
from pathways._errors import PathwaysError
from pathways._version import __version__

if TYPE_CHECKING:
    import jax

    from pathways import _arrow
    from pathways._doctor import Report
    from pathways._events import Event, Events
    from pathways._pipeline import Pipeline
    from pathways._slices import VirtualDeviceSet
    from pathways._status import Status
    from pathways._sync import Weights
    from pathways._timeline import Timeline

__all__ = [
    "PathwaysError",
    "__version__",
    "devices",
    "doctor",
    "events",
    "from_arrow",
    "init",
    "make_virtual_device_set",
    "on_event",
    "pipeline",
    "program",
    "reshard",
    "shutdown",
    "stats",
    "status",
    "sync",
    "to_arrow",
    "trace",
]


def init(
    address: str | None = None,
    *,
    devices: int | None = None,
    memory_limit: int | str | None = None,
    memory_wait: float | None = None,
    wait: float | None = None,
    elastic: bool | None = None,
    platform: str | None = None,
    **unknown: Any,
) -> None:
    """Configures Pathways, before the first use of JAX. It makes no devices itself, unless `wait` is given.

    Calling it again with the same settings does nothing, as long as the session on the cluster is not lost.

    Args:
      address: a cluster, by the address of its controller ("tcp:host:port", "unix:/path"), or a cluster inside this
        process ("local:2x4": two workers with four devices each). None means PATHWAYS_ADDRESS or, if that is not set,
        the devices of this machine.
      devices: the number of devices, 1 to 4096. On this machine, None means PATHWAYS_DEVICES, or as many as JAX itself
        would show. On a cluster, you get exactly this number: from one island and from whole workers if possible, and
        those that the fewest other users requested; None means all devices of the cluster.
      memory_limit: the memory limit of each device of this machine, for arrays, the code of programs and temporary
        memory, in bytes or as a text such as "4GiB". A call whose results do not fit waits while computations in flight
        may free enough, and a few seconds for other threads; then it fails with RESOURCE_EXHAUSTED. None means
        PATHWAYS_MEMORY_LIMIT, or the device's own limit.
      memory_wait: the maximum number of seconds that such a call waits; None means 60. On a cluster, the controller's
        --memory-wait applies.
      wait: seconds that init() waits until the cluster's controller answers and has the devices (at least one). None
        means PATHWAYS_WAIT. If that is not set either, the first use of JAX waits 30 seconds for the devices, but fails
        at once if no controller answers. A terminal shows the state of the wait. It has no effect on the devices of
        this machine.
      elastic: True gives the script all requested devices even while the cluster has fewer (at least one). Using a
        device that has no worker yet fails with NOT_FOUND. A worker that joins later and matches the cluster's first
        one takes over such devices; `events()` then has a "rebound". It needs `devices`, and a cluster that workers can
        join.
      platform: the platform of the devices, as `pathways status` shows it: "cpu", "cuda", "tpu". With several, such as
        "cuda,cpu", the script has devices of each: `jax.devices()` are those of the first, `pathways.devices("cpu")`
        the others, and `devices` is the number per platform. None means PATHWAYS_PLATFORM or, if that is not set, the
        platform of the cluster's accelerators (of several, that of the worker whose name sorts first), or "cpu" if it
        has none.

    Raises:
      PathwaysError: INVALID_ARGUMENT for an unknown option, an invalid address, a number out of range, or memory_limit
        together with a cluster, whose workers have limits of their own; FAILED_PRECONDITION if JAX already runs with
        other settings; NOT_FOUND if the library is missing. With wait, also RESOURCE_EXHAUSTED if the cluster still has
        too few devices when the time is over, and UNAVAILABLE if no controller answered. UNAVAILABLE also if JAX
        already runs on a cluster and has lost its session: call shutdown() first.
    """
    _backend.init(address, devices, memory_limit, memory_wait, wait, elastic, platform, unknown)


def shutdown(*, timeout: float = 30.0) -> None:
    """Stops accepting work, waits for the work in flight, frees everything, and makes JAX forget its devices.

    All arrays are lost. You may call `init()` again, with other settings if you like. It happens automatically at exit.

    Args:
      timeout: seconds to wait for work in flight; work that has not ended by then is cut off.

    Raises:
      PathwaysError: DEADLINE_EXCEEDED if work was cut off.
    """
    _backend.shutdown(timeout)


def devices(platform: str | None = None) -> list[jax.Device]:
    """Returns JAX's Pathways devices, and makes them if this is the first use.

    Args:
      platform: one of those that `init(platform="cuda,cpu")` names; None means the first.

    Raises:
      PathwaysError: if there are none; the code and the message say why.
    """
    return _backend.devices(platform)


def program(
    function: Callable[..., Any] | None = None,
    *,
    static_argnums: int | Iterable[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Iterable[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
) -> Any:
    """Turns a function that calls jitted functions and moves data between devices into one program.

        @pathways.program
        def step(x):
            y = first(x)             # jitted, on some devices
            return second(y)         # jitted, on others

    The first call for given types, shapes and shardings of the arguments runs the function once and captures the work
    that it submits to devices: each computation, copy and reshard is one node of a graph, independent of the number of
    shards. That call and later ones play the graph, without running the function's Python, and return the same bits as
    the function itself.

    During the capture, arrays inside the function have no contents. Reading, printing or branching on one raises an
    error that names the line. All other Python code (printing, counting, reading a clock) runs only during the capture.
    Arrays from outside become constants of the program. Programs that a program calls become part of it; under
    `jax.jit` and similar transformations the function is called directly. Any number of threads may call the program at
    once.

    Args:
      function: a function that accepts and returns pytrees of arrays. Numbers and NumPy arrays among the arguments
        become JAX arrays.
      static_argnums, static_argnames: arguments that are captured by value, as in `jax.jit`; they must be hashable.
      donate_argnums, donate_argnames: arguments whose memory the program may reuse; they are deleted by the call. Other
        arguments are not, even if the function passes them to a jitted function that donates.

    Returns:
      the program or, without a function, a decorator that makes one. `f.lower(*args)` returns the captured graph for
      such arguments: `.as_text()`, `.graph`, `.save("f.svg")`; a notebook draws it. `f.cost()` returns the seconds that
      the first calls took.

    Raises:
      PathwaysError: from a call: FAILED_PRECONDITION if the function reads an array during the capture, UNIMPLEMENTED
        for ordered effects inside.
      TypeError, ValueError: for arguments that are neither arrays nor static, or static and not hashable; and if
        `function` is not a function, or is a generator or an asynchronous function.
    """
    from pathways import _program

    return _program.program(
        function,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        donate_argnums=donate_argnums,
        donate_argnames=donate_argnames,
    )


def reshard(arrays: Any, shardings: Any) -> Any:
    """Moves arrays to other shardings, on the same devices or any others, without passing through this process.

    Each destination shard is assembled from regions of source shards, which move from device to device and, on a
    cluster, from worker to worker. The call does not block: the result can be used at once, and if the computation of
    an array fails, so does its copy. The arguments are unchanged.

    `jax.device_put` uses this wherever stock JAX would read an array on the host.

    Args:
      arrays: an array or a pytree of arrays, on devices of Pathways.
      shardings: a `jax.sharding.Sharding` or a device; or a pytree of them that is a prefix of the arrays' tree.

    Returns:
      arrays with the same values. An array that already has an equivalent sharding is returned itself.

    Raises:
      PathwaysError: INVALID_ARGUMENT for arguments that are not arrays of Pathways or shardings, and for an array that
        was deleted or donated; RESOURCE_EXHAUSTED if there is not enough memory.
      ValueError: from JAX, if an array does not divide into the shards of a sharding.
    """
    from pathways import _together

    return _together.reshard(arrays, shardings)


def sync(params: Any, to: Any, *, dtype: Any = None) -> Weights:
    """Keeps the newest version of a trainer's weights on other devices, such as those of its samplers.

    ``weights = pathways.sync(params, to=shardings)`` sends version 0. ``weights.push(params)`` sends the next one, and
    ``number, params = weights.latest()`` returns the newest version whose arrays have all arrived. The transfers are
    planned once, the bytes go from worker to worker, and neither call waits for them.

    Args:
      params: a pytree of arrays on devices of Pathways.
      to: a `jax.sharding.Sharding` or a device; or a pytree of them that is a prefix of the weights' tree.
      dtype: the dtype of floating-point arrays there, such as `jnp.bfloat16`. They travel in the narrower of the two.

    Returns:
      `Weights`, with the methods `push`, `latest` and `wait`.

    Raises:
      PathwaysError: INVALID_ARGUMENT if a leaf is not an array of Pathways, `to` is neither a sharding nor a prefix of
        the tree, or dtype is not a floating-point one.
    """
    from pathways import _sync

    return _sync.Weights(params, to, dtype)


def make_virtual_device_set() -> VirtualDeviceSet:
    """Returns an empty set of slices. A slice is a set of devices that the resource manager grants together.

    ``slice = pathways.make_virtual_device_set().add_slice(devices=2)``; ``slice.devices`` are JAX devices.
    """
    from pathways._slices import VirtualDeviceSet

    return VirtualDeviceSet()


def from_arrow(x: Any, sharding: Any = None, *, zero_copy: bool | None = None, prefetch: int = 2) -> Any:
    """Makes arrays from Arrow data, without a copy if possible.

    Numbers and booleans become an array [n], fixed-size lists [n, size], and `arrow.fixed_shape_tensor` [n, *shape]. A
    record batch becomes a dictionary of arrays by column. Tables, chunked arrays and readers are streams: the result is
    an iterator over their converted batches, which reads the next batch and copies it to the devices while you work on
    the current one.

    The bytes are shared if they are one block that begins at a multiple of 64 and the device uses this process's
    memory; Arrow's memory is then kept as long as the array. Dtypes follow JAX: without `jax_enable_x64`, 64 bits
    become 32.

    Args:
      x: an object with `__arrow_c_array__` or `__arrow_c_stream__`, of pyarrow, polars, DuckDB and others.
      sharding: a sharding or a device for every array, or a dictionary of them by column. None means JAX's default
        device.
      zero_copy: True makes a copy an error, False always copies, None copies if necessary.
      prefetch: the number of batches of a stream that a separate thread reads ahead. With 0, the calling thread reads
        each batch when it is requested; sources that belong to one thread, such as SQLite's, need that.

    Raises:
      PathwaysError: INVALID_ARGUMENT for nulls, dictionary encoding and types other than numbers; the message says what
        to do. FAILED_PRECONDITION if `zero_copy` is True and a copy would be necessary; the message says why.
    """
    if "_arrow" not in globals():  # an import statement in each call would take as long as the call
        importlib.import_module("pathways._arrow")
    return _arrow.from_arrow(x, sharding, zero_copy=zero_copy, prefetch=prefetch)


def to_arrow(array: Any) -> Any:
    """Exports an array as Arrow data: `pyarrow.array(pathways.to_arrow(x))`; other Arrow libraries work alike.

    An array [n] becomes numbers or booleans, an array [n, *shape] an `arrow.fixed_shape_tensor`, and a dictionary of
    arrays of the same length a record batch. It waits for the values. On the host, Arrow uses the array's own memory,
    except for booleans; an array on several devices is assembled in a copy.

    Args:
      array: an array of JAX or NumPy, or a dictionary of them by column name.

    Returns:
      an object with `__arrow_c_array__` and `__arrow_c_schema__`, which can be called repeatedly.

    Raises:
      PathwaysError: INVALID_ARGUMENT for a scalar, and for a dtype that Arrow does not have, such as bfloat16.
    """
    if "_arrow" not in globals():
        importlib.import_module("pathways._arrow")
    return _arrow.to_arrow(array)


def pipeline(
    stages: Sequence[tuple[Callable[[Any, Any], Any], Any, Any]],
    microbatches: int,
    schedule: Literal["gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zbv", "auto"] = "1f1b",
    *,
    loss: Callable[[Any, Any], Any] | None = None,
    tied: Mapping[tuple[int, str], tuple[int, str]] | None = None,
    memory: int | str | None = None,
    state: Callable[[Any], Any] | None = None,
) -> Pipeline:
    """Makes a pipeline: a model in stages that run at the same time on different microbatches, each on its own devices.

        pipe = pathways.pipeline([(block, params0, devices[:2]), (block, params1, devices[2:])], 8, loss=loss)
        value, gradients = pipe.value_and_grad(x, targets)
        pipe.params = [step(p, g) for p, g in zip(pipe.params, gradients)]

    Parameters and their gradients stay on their stage's devices; arrays between stages move from device to device.
    Calls return futures and do not wait for values. A backward uses the residuals of its forward; a stage in
    `jax.checkpoint` keeps only its parameters and input, and recomputes the rest.

    Args:
      stages: tuples (function, params, place), first to last. function(params, x) returns the input of the next stage:
        an array or a pytree of them, with rows along the first dimension. params: a pytree of floating-point arrays,
        copied to the place unless they are there already. place: a device; a slice or a list of devices, over which a
        microbatch's rows are split; a Mesh, along whose first axis rows are split; or a NamedSharding for x.
      microbatches: the number of microbatches per batch.
      schedule: "gpipe", all forwards and then all backwards; "1f1b", which takes the same time and keeps less: stage s
        of S keeps the arrays of at most S - s microbatches; "interleaved", the same with several stages on each place;
        "zb-h1", "zb-h2" and "zbv", in which backwards are split, so that little or no time is idle. "auto" times the
        stages at the first step, and chooses the one whose steps are shortest. Case and punctuation do not matter. See
        docs/guides/pipelines.md.
      loss: a function (y, targets) of the last stage's output that returns one number, the mean over rows; needed for
        `value_and_grad`.
      tied: parameters that belong to another stage, such as {(3, "unembed"): (0, "embed")}: stage 3's function finds
        `unembed` in its params, a dict, but only stage 0's params store it. Its gradients are summed there, in the
        order of stages.
      memory: with "auto", the memory limit of each device, such as 4 * 2**30 or "4GiB", for parameters, gradients,
        residuals and temporary memory. None means the devices' own limit.
      state: a function that makes an optimizer's state from a stage's parameters, such as optax.adam(1e-3).init, so
        that plans count its memory. It is traced for its shapes, and does not run.

    Returns:
      a `Pipeline` with .forward(batch), .value_and_grad(batch, targets), .params, .schedule (drawn by .draw(path)), and
      .plan, which compares schedules.

    Raises:
      PathwaysError: INVALID_ARGUMENT for an unknown schedule, a number below one, an invalid place, parameters without
        gradients, or an invalid `tied` or `memory`.
    """
    from pathways._pipeline import Pipeline

    return Pipeline(stages, microbatches, schedule, loss, tied or {}, memory, state)


def events() -> Events:
    """Returns an iterator over the session's events from now on: lost and replaced workers, and breaks of the
    connection to the controller. Call it before the work that may be affected.

        events = pathways.events()
        try:
            y = step(x)
            y.block_until_ready()
        except (jax.errors.JaxRuntimeError, ValueError):
            events.wait("rebound", timeout=60)  # the devices can be used again
            x = jax.device_put(saved, sharding)

    Each event has kind ("lost", "came", "rebound", "disconnected", "resumed", "restarted", "ended"), worker, devices,
    reason, time. Iterating blocks until the next event, and ends after "ended", which comes when the session is lost or
    `shutdown()` is called. A terminal shows a line for each event.
    """
    from pathways._events import Events

    return Events()


def on_event(call: Callable[[Event], None]) -> Callable[[], None]:
    """Calls a function with each event from now on (see `events()`), on a separate thread. An exception becomes a
    warning. It stops after "ended"; call it again after the next `init()`.

    Returns:
      a function that stops the calls.
    """
    from pathways import _events

    return _events.on_event(call)


def stats() -> dict[str, Any]:
    """Returns counters of the running system. ``stats()["live"]`` maps each kind of object to the number of live ones;
    ``stats()["copied"]`` counts the bytes of arrays that this process has copied to and from clusters.

    Raises:
      PathwaysError: if the library cannot be loaded.
    """
    return _native.stats()


def status(address: str | None = None) -> Status:
    """Returns the workers, devices, sessions and programs of a cluster, as `pathways status` shows them, or of this
    process, with the device time of sessions and programs.

    A notebook draws the result; ``status().report`` is the same as plain data.

    Args:
      address: the address of the controller; None means this process's cluster, or its own devices.

    Raises:
      PathwaysError: FAILED_PRECONDITION for a cluster inside this process ("local:2x4"), UNAVAILABLE if the controller
        cannot be reached, UNAUTHENTICATED if it refuses.
    """
    from pathways import _status

    return _status.ask(address)


@contextmanager
def trace(path: str | os.PathLike[str]) -> Iterator[Timeline]:
    """Records the computations of this process's or its cluster's devices in the ``with`` block, into a file for
    https://ui.perfetto.dev. On a cluster it also records calls, the controller's queue, transfers and collectives.
    `jax.profiler.trace` records the computations for xprof.

        with pathways.trace("step.json") as timeline:
            jax.block_until_ready(step(x))
        timeline  # in a notebook, a picture: a row per device, a bar per computation

    Yields:
      the `Timeline`, for use after the block: `.spans`, `.save("step.svg")`.

    Raises:
      PathwaysError: if the file cannot be written (NOT_FOUND, PERMISSION_DENIED, …); FAILED_PRECONDITION if another
        trace is being recorded.
    """
    from pathways import _timeline

    timeline = _timeline.Timeline(path)
    _native.trace_start(str(timeline.path))
    _timeline.recording = timeline
    try:
        yield timeline
    finally:
        _timeline.recording = None
        _native.trace_stop()
        timeline._read()


def doctor(file: TextIO | None = None) -> Report:
    """Checks the installation: prints what is installed, what was chosen and why, and what is missing. It makes the
    devices.

    Args:
      file: where to print; None means standard output.

    Returns:
      the report: ``report.ok``, ``report.problems``, and the facts as attributes.
    """
    from pathways import _doctor

    report = _doctor.examine()
    print(report, file=file)
    return report


_backend.register()
