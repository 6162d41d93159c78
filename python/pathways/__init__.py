"""Open Pathways: one Python process drives every accelerator, with ordinary JAX.

    import pathways          # before the first use of JAX
    import jax

    pathways.init(devices=8) # optional: PATHWAYS_DEVICES=8 does the same
    print(jax.devices())

Importing this package registers the backend ``pathways`` with JAX and makes it the default one of the process, ahead
of everything but a JAX_PLATFORMS that leaves it out (then it warns once and steps aside). JAX makes the devices at its
first use. On a CPU there are as many as JAX itself would show (``jax_num_cpu_devices``, else
``--xla_force_host_platform_device_count`` in XLA_FLAGS, else 1) unless ``init(devices=n)`` or PATHWAYS_DEVICES says
more; of accelerators, all there are.

Variables: PATHWAYS_ADDRESS, a cluster · PATHWAYS_WAIT, seconds to wait for it · PATHWAYS_DEVICES, number of devices of
this machine; of a cluster, ``init(devices=n)`` says it · PATHWAYS_CONFIG, a file with lines such as ``wait = "1m"``,
for those of the variables above that are not set; a line that it cannot have is an error · PATHWAYS_PLUGIN, path of a
PJRT plugin · PATHWAYS_PLUGIN_DIRS, where else to look for packaged plugins · PATHWAYS_LIBRARY, another libpathways.so ·
PATHWAYS_BATCH, false to have every call leave by itself for a cluster, also where many queue up.

A child made by ``fork()`` cannot use the devices of its parent; each call there raises. Start processes with the
``spawn`` method instead. ``pathways.doctor()`` says what was found and what is missing.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TextIO

from pathways import _backend, _native
from pathways._errors import PathwaysError
from pathways._version import __version__

if TYPE_CHECKING:
    import jax

    from pathways import _arrow
    from pathways._doctor import Report
    from pathways._pipeline import Pipeline
    from pathways._slices import VirtualDeviceSet
    from pathways._status import Status
    from pathways._timeline import Timeline

__all__ = [
    "PathwaysError",
    "__version__",
    "devices",
    "doctor",
    "from_arrow",
    "init",
    "make_virtual_device_set",
    "pipeline",
    "program",
    "reshard",
    "shutdown",
    "stats",
    "status",
    "to_arrow",
    "trace",
]


def init(
    address: str | None = None,
    *,
    devices: int | None = None,
    memory_limit: int | str | None = None,
    wait: float | None = None,
    **unknown: Any,
) -> None:
    """Says what this process wants, before the first use of JAX. It makes no device itself, unless it is to wait.

    Calling it again with the same settings does nothing.

    Args:
      address: a cluster, by its controller ("tcp:host:port", "unix:/path"), or one inside this process ("local:2x4",
        two workers of four devices each); None, PATHWAYS_ADDRESS or the devices of this machine.
      devices: how many devices, 1 to 4096. Of this machine, None is PATHWAYS_DEVICES or what JAX itself would show. Of
        a cluster, there are exactly so many: of one island and of whole workers where that can be, and those that the
        fewest other users asked for; None is all that are there.
      memory_limit: bytes of each device of this machine that arrays may take, a number or a text such as "4GiB"; more
        is RESOURCE_EXHAUSTED; None, PATHWAYS_MEMORY_LIMIT or no limit but the device's own.
      wait: seconds to wait for a cluster's controller to answer and to have the devices (at least one). With it,
        init() returns when they are there. None: PATHWAYS_WAIT for both; without it the first use of JAX waits 30
        seconds for the devices, and fails at once where no controller answers. A terminal shows what is waited for.
        It has no effect on the devices of this machine.

    Raises:
      PathwaysError: INVALID_ARGUMENT for an unknown option, an address that is none, a number out of range, or
        memory_limit with the address of a cluster, whose workers say what they have; FAILED_PRECONDITION where JAX
        already runs with other settings; NOT_FOUND where the library is missing. With wait, RESOURCE_EXHAUSTED where
        the cluster has too few devices at its end, and UNAVAILABLE where no controller answered.
    """
    _backend.init(address, devices, memory_limit, wait, unknown)


def shutdown(*, timeout: float = 30.0) -> None:
    """Takes no more work, waits for the work in flight, frees everything, and makes JAX forget its devices.

    Arrays made before are gone. `init()` then starts afresh, with other settings if wanted. At exit this happens by
    itself. Does nothing where nothing runs.

    Args:
      timeout: seconds to wait for work in flight; what is not done then is cut off.

    Raises:
      PathwaysError: DEADLINE_EXCEEDED where work was cut off.
    """
    _backend.shutdown(timeout)


def devices() -> list[jax.Device]:
    """The devices that Pathways gives to JAX, making them if this is the first use.

    Raises:
      PathwaysError: with the code and the reason for which there are none.
    """
    return _backend.devices()


def program(
    function: Callable[..., Any] | None = None,
    *,
    static_argnums: int | Iterable[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Iterable[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
) -> Any:
    """Makes one program of a function that calls jitted functions, on any devices, and moves data between them.

        @pathways.program
        def step(x):
            y = first(x)             # jitted, on some devices
            return second(y)         # jitted, on others

    The first call for given types, shapes and shardings of the arguments runs the function once and captures what it
    has devices do: each computation, copy and reshard is one node of a graph, whatever the number of shards. That call
    and later ones play the graph, without the function's Python, and give the bits that the function gives.

    While it is captured, arrays inside of the function have no contents. A line that reads, prints or branches on one
    raises, and names itself. What Python does beside (printing, counting, reading a clock) happens at the capture only.
    Arrays of outside that the function uses are constants, kept as they are. Programs called by a program become a part
    of it; under `jax.jit` and the like the function is called as it is. Calls may come from any threads at once.

    Args:
      function: takes and gives pytrees of arrays. Arguments that are numbers or NumPy arrays become arrays of JAX.
      static_argnums, static_argnames: arguments whose values the capture is for, as in `jax.jit`; hashable.
      donate_argnums, donate_argnames: arguments whose memory the program may take over; they are gone after the call.
        Others stay, also where the function gives them to a jitted function that donates.

    Returns:
      the program; or, without a function, what makes one of it. `f.lower(*args)` shows what is captured for such
      arguments: `.as_text()`, `.graph`, `.save("f.svg")`, and a picture in a notebook. `f.cost()` tells how many
      seconds the first calls took.

    Raises:
      PathwaysError: from a call, FAILED_PRECONDITION where the function reads an array while it is captured,
        UNIMPLEMENTED for ordered effects inside.
      TypeError, ValueError: for arguments that are neither arrays nor static, or static and not hashable; and for
        what is no function, a generator or an asynchronous function.
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
    """Moves arrays to other shardings, on the same devices or any others, without a detour through this process.

    Every destination shard is put together from the boxes of source shards that it needs, which go from device to
    device, and in a cluster from worker to worker. It does not wait for the data: what is returned can be used at once,
    and an error of what computes an array goes on to what it becomes. The arrays given stay as they are.

    `jax.device_put` takes this way too wherever stock JAX would read an array on the host.

    Args:
      arrays: an array or a pytree of arrays, on devices of Pathways.
      shardings: a `jax.sharding.Sharding` or a device; or a pytree of them, a prefix of the arrays'.

    Returns:
      arrays of the same values; those that have such a sharding already are returned themselves.

    Raises:
      PathwaysError: INVALID_ARGUMENT for what is no array of Pathways or no sharding, and for an array that was deleted
        or donated; RESOURCE_EXHAUSTED where there is no room.
      ValueError: from JAX, where an array does not divide into the shards of a sharding.
    """
    from pathways import _reshard

    return _reshard.reshard(arrays, shardings)


def make_virtual_device_set() -> VirtualDeviceSet:
    """Makes an empty set of slices: devices that the resource manager grants together.

    ``slice = pathways.make_virtual_device_set().add_slice(devices=2)``; ``slice.devices`` are JAX devices.
    """
    from pathways._slices import VirtualDeviceSet

    return VirtualDeviceSet()


def from_arrow(x: Any, sharding: Any = None, *, zero_copy: bool | None = None, prefetch: int = 2) -> Any:
    """Makes arrays of Arrow data, with no copy where that is possible.

    Numbers become an array [n], booleans too, fixed-size lists [n, size], and `arrow.fixed_shape_tensor` [n, *shape]. A
    record batch becomes a dictionary of arrays by column. Tables, chunked arrays and readers are streams: an iterator
    of what their batches become, which reads the next one and brings it to the devices while one is worked on.

    The bytes are shared where they are one block that begins at a multiple of 64, on a device whose memory is that of
    this process; Arrow's memory is then kept as long as the array. Dtypes follow JAX: without `jax_enable_x64` 64 bits
    become 32.

    Args:
      x: what has `__arrow_c_array__` or `__arrow_c_stream__`: of pyarrow, polars, DuckDB and others.
      sharding: a sharding or a device for every array, or a dictionary of them by column; None, JAX's default device.
      zero_copy: True, an error where there would be a copy; False, always a copy; None, a copy where there has to be.
      prefetch: of a stream, how many batches are read ahead, by a thread of its own; 0 reads each when it is asked for,
        in the thread that asks, as sources want that belong to a thread (SQLite's do).

    Raises:
      PathwaysError: INVALID_ARGUMENT for nulls, dictionary encoding and types that are no numbers, with what to do;
        FAILED_PRECONDITION where `zero_copy` is True and there would be a copy, with the reason.
    """
    if "_arrow" not in globals():  # an import statement in each call would take as long as the call
        importlib.import_module("pathways._arrow")
    return _arrow.from_arrow(x, sharding, zero_copy=zero_copy, prefetch=prefetch)


def to_arrow(array: Any) -> Any:
    """Shows an array to Arrow: `pyarrow.array(pathways.to_arrow(x))`, and so for any library that takes Arrow data.

    An array [n] becomes numbers or booleans, one [n, *shape] an `arrow.fixed_shape_tensor`, and a dictionary of arrays
    of one length a record batch. It waits for the values. On the host the bytes are those of the array, booleans
    apart; what lies on several devices is put together in a copy.

    Args:
      array: an array of JAX or NumPy, or a dictionary of them by column name.

    Returns:
      an object with `__arrow_c_array__` and `__arrow_c_schema__`; each call gives the data anew.

    Raises:
      PathwaysError: INVALID_ARGUMENT for a scalar, and for a dtype that Arrow does not have, such as bfloat16.
    """
    if "_arrow" not in globals():
        importlib.import_module("pathways._arrow")
    return _arrow.to_arrow(array)


def pipeline(
    stages: Sequence[tuple[Callable[[Any, Any], Any], Any, Any]],
    microbatches: int,
    schedule: Literal["gpipe", "1f1b"] = "1f1b",
    *,
    loss: Callable[[Any, Any], Any] | None = None,
) -> Pipeline:
    """A model in stages that run at the same time, each on its own devices, on one microbatch after the other.

        pipe = pathways.pipeline([(block, params0, devices[:2]), (block, params1, devices[2:])], 8, loss=loss)
        value, gradients = pipe.value_and_grad(x, targets)
        pipe.params = [step(p, g) for p, g in zip(pipe.params, gradients)]

    Parameters and their gradients stay on their stage's devices; arrays between stages go from device to device. Calls
    return futures and do not wait for a value. A backward uses what its forward kept; a stage in `jax.checkpoint` keeps
    its parameters and input only and computes the rest again.

    Args:
      stages: (function, params, place), first to last. function(params, x) gives what the next stage takes: an array or
        a pytree of them, rows first. params: a pytree of floating-point arrays, brought to the place unless they are
        there already. place: a device; a slice or a list of devices, which share a microbatch's rows; a Mesh, along
        whose first axis rows are split; or a NamedSharding for x.
      microbatches: into how many a batch's rows are cut.
      schedule: "gpipe", all forwards and then all backwards, or "1f1b", which takes the same time and keeps less:
        of stage s of S the arrays of at most S - s microbatches.
      loss: function(y, targets) of the last stage's output gives one number, the mean over rows; for `value_and_grad`.

    Returns:
      a `Pipeline`: .forward(batch), .value_and_grad(batch, targets), .params, and .schedule, whose .draw(path) writes
      a picture of time and devices.

    Raises:
      PathwaysError: INVALID_ARGUMENT for an unknown schedule, a number below one, a place that is none, or parameters
        that have no gradients.
    """
    from pathways._pipeline import Pipeline

    return Pipeline(stages, microbatches, schedule, loss)


def stats() -> dict[str, Any]:
    """Counters of the running system; ``stats()["live"]`` maps each kind of object to how many are alive now, and
    ``stats()["copied"]`` is how many bytes of arrays this process has copied on their way to and from clusters.

    Raises:
      PathwaysError: where the library cannot be loaded.
    """
    return _native.stats()


def status(address: str | None = None) -> Status:
    """Asks a cluster's controller which workers, devices and sessions there are, as `pathways status` does.

    A notebook shows the answer as a picture; ``status().report`` is the same as plain data.

    Args:
      address: of the controller; None, that of this process's cluster.

    Raises:
      PathwaysError: FAILED_PRECONDITION where this process uses devices of its own, UNAVAILABLE where the controller
        cannot be reached, UNAUTHENTICATED where it refuses.
    """
    from pathways import _status

    return _status.ask(address)


@contextmanager
def trace(path: str | os.PathLike[str]) -> Iterator[Timeline]:
    """Records what devices run inside the ``with`` block into a file that https://ui.perfetto.dev opens: those of this
    process, or of its cluster. `jax.profiler.trace` records the same for xprof.

        with pathways.trace("step.json") as timeline:
            jax.block_until_ready(step(x))
        timeline  # in a notebook, a picture: a row a device, a bar a computation

    Yields:
      the `Timeline`, to look at behind the block: `.spans`, `.save("step.svg")`.

    Raises:
      PathwaysError: where the file cannot be written (NOT_FOUND, PERMISSION_DENIED, …), or FAILED_PRECONDITION where a
        trace runs already.
    """
    from pathways._timeline import Timeline

    timeline = Timeline(path)
    _native.trace_start(str(timeline.path))
    try:
        yield timeline
    finally:
        _native.trace_stop()
        timeline._read()


def doctor(file: TextIO | None = None) -> Report:
    """Prints one screen on what is here, what was chosen and why, and what is missing; makes the devices to see them.

    Args:
      file: where to print; None, standard output.

    Returns:
      the report: ``report.ok``, ``report.problems``, and the facts as attributes.
    """
    from pathways import _doctor

    report = _doctor.examine()
    print(report, file=file)
    return report


_backend.register()
