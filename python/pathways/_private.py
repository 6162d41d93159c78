"""What this package uses of JAX that JAX keeps private. No other module of the package uses such parts.

Seen in jax 0.10.2 and 0.12.0.1 with their jaxlib:

- `jax._src.xla_bridge`: `register_plugin`, `register_backend_factory`, `backends_are_initialized`, and the dicts
  `_backends`, `_backend_factories` and `_topology_factories` by platform. The public `jax.extend.backend` cannot
  replace a factory, look at a client without making one, nor give a client a second name. (`add_name` was also seen in
  0.11.2, which has a client's `_raw_platform`.)
- `jax._src.dispatch.runtime_tokens`: the tokens of ordered effects, which `clear_backends` waits for.
- `jax._src.array.shard_sharded_device_array_slow_path`: the function by which JAX reads an array on the host to change
  its sharding. Without it, moves take the stock way.
- `jax._src.interpreters.pxla.shard_arg_handlers`: by type, the functions by which JAX brings the arrays of a call to
  their shardings. That of arrays calls the one above for one array after the other, and only lists what it returns.
- `jax._src.interpreters.pxla.batched_device_put`, by which JAX brings shards to other devices;
  `jax._src.pjit._get_fastpath_data`, which says what its C++ needs to repeat a call; and, for what was compiled ahead,
  `MeshExecutable.create_cpp_call` and `_in_shardings`, and `jax._src.stages.Compiled.call`. They are replaced where a
  script has devices of several platforms. Without the last ones, C++ moves arrays that were never placed, by reading
  them on the host.
- `jax._src.core.ShapedArray` and `update_aval_with_sharding`, `jax._src.lib.guard_lib`, and
  `jaxlib.xla_client.batched_device_put`: the inside of `jax.device_put`, which is used itself without them.
- `jax._src.config.trace_context`, by which JAX keeps what it traces: the settings of the thread and the shape of its
  mesh; and `jax._src.mesh.get_concrete_mesh`, the mesh itself, which the public `get_mesh` refuses while JAX traces.
- an equation of a jaxpr: `ctx.manager`, the settings under which it was traced, and `primitive.get_bind_params`. The
  types are public, as `jax.extend.core`; these parts are what `jax.core.eval_jaxpr` uses.
- `jax._src.lax.parallel.pbroadcast_p` and `_pbroadcast_lowering`: the primitive and its rule for GPUs, which it gets
  for CPU devices, too. Without the rule, JAX does not lower it there.
- `jaxlib.xla_client`: the registry of FFI targets (`_xla`, `_custom_callback_handler`, `register_custom_call_handler`,
  `register_custom_type_handler`), and the CPU client with its compile options.
- `jax.interpreters.mlir.make_ir_context`, with what StableHLO's bindings read and write portable bytecode by: their
  names are public, and their parameters JAX's own.
- `jaxlib._sdy_mpmd.compile_mpmd`, which OpenXLA's MPMD front end calls, and the names `jax.jaxlib` and `mlir` by which
  that asks for jaxlib and its bindings of MLIR.

A worker does not import JAX: the parts of jaxlib that it uses are in `pathways_command/_handlers.py`. The structs of
jaxlib that C reads are named in `capi/ffi`.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

BRIDGE = "jax._src.xla_bridge"
_VERSION = re.compile(rb"ML\xefR.StableHLO_v([0-9.]+)\0", re.DOTALL)  # in portable bytecode
SLOW_PATH = "shard_sharded_device_array_slow_path"

# --- backends ---


def are_backends_made() -> bool:
    """Returns whether JAX has created its backends. It does not import JAX."""
    bridge = sys.modules.get(BRIDGE)
    return bridge is not None and bridge.backends_are_initialized()


def client(platform: str) -> Any:
    """Returns JAX's client of a platform, or None if it has not created one."""
    return sys.modules[BRIDGE]._backends.get(platform) if are_backends_made() else None


def register_plugin(
    name: str, priority: int, path: str, options: Any, wrap: Callable[[Callable[[], Any]], Callable[[], Any]]
) -> None:
    """Registers a plugin as a backend, whose client is made by wrap(JAX's own function for that)."""
    from jax._src import xla_bridge

    c_api = xla_bridge.register_plugin(name, priority=priority, library_path=path, options=options)
    # Again, because JAX warns that every plugin that it does not know by name is experimental.
    xla_bridge.register_backend_factory(
        name,
        wrap(xla_bridge._backend_factories[name].factory),
        priority=priority,
        fail_quietly=False,
        experimental=False,
        make_topology=xla_bridge._topology_factories[name],
        c_api=c_api,
    )


def register_backend(name: str, priority: int, make: Callable[[], Any]) -> None:
    """Registers a backend whose client make() returns."""
    from jax._src import xla_bridge

    xla_bridge.register_backend_factory(name, make, priority=priority, fail_quietly=False)


def raw_platform(client: Any) -> str:
    """Returns the name of the platform for which JAX lowers what runs on a client's devices."""
    return getattr(client, "_raw_platform", client.platform)


def add_name(client: Any) -> None:
    """Makes JAX find the client under its platform's own name, too: jax.devices("gpu"), or DLPack's "cuda".

    Without it, everything that looks for a platform by name would fail if the devices are GPUs or TPUs: torch tensors
    by DLPack, jax.export, cuDNN's attention. The name "cpu" stays with JAX's own client. Called while JAX creates the
    client, which it does for one backend at a time, holding their lock.
    """
    from jax._src import xla_bridge

    platform = raw_platform(client)
    if platform != "cpu":
        xla_bridge._backends.setdefault(platform, client)


def forget_effects() -> None:
    """Drops the tokens of effects in flight, so that JAX does not wait for them."""
    from jax._src import dispatch

    dispatch.runtime_tokens.clear()


# --- lowering ---


def lower_broadcasts() -> None:
    """Makes JAX lower pbroadcast for CPUs as for GPUs, if this version of JAX has the rule for that."""
    from jax._src.lax import parallel
    from jax.interpreters import mlir

    rule = getattr(parallel, "_pbroadcast_lowering", None)
    if rule is not None:
        mlir.register_lowering(parallel.pbroadcast_p, rule, platform="cpu")


def replace_compile_mpmd(make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replaces the function that compiles a module for OpenXLA's MPMD front end by make(that function).

    It also makes the names importable by which that front end knows jaxlib. It does nothing the second time.
    """
    from pathways_command import _partition

    _partition.alias()
    from jaxlib import _sdy_mpmd

    stock = _sdy_mpmd.compile_mpmd
    if not hasattr(stock, "__wrapped__"):
        replaced = make(stock)
        replaced.__wrapped__ = stock
        _sdy_mpmd.compile_mpmd = replaced


# --- arrays ---


def replace_moves(one: Callable[..., Any], call: Callable[..., Any]) -> None:
    """Replaces two functions of JAX by what is made of them.

    one: of the function that reads an array on the host to change its sharding.
    call: of the function that brings arrays to their shardings, and calls the first for those that need it. A call of
      jax.device_put is one of this, whatever the number of its arrays.

    It does nothing the second time, or if this version of JAX has no such function.
    """
    from jax._src import array
    from jax._src.interpreters import pxla

    stock = getattr(array, SLOW_PATH, None)
    if stock is not None and not hasattr(stock, "__wrapped__"):
        setattr(array, SLOW_PATH, functools.wraps(stock)(one(stock)))
        stock = pxla.shard_arg_handlers[array.ArrayImpl]
        pxla.shard_arg_handlers[array.ArrayImpl] = functools.wraps(stock)(call(stock))


def replace_puts(
    shard_args: Callable[..., Any],
    batched_put: Callable[..., Any],
    is_slow: Callable[[Sequence[Any], Sequence[Any]], bool],
) -> None:
    """Replaces the two functions by which JAX brings arrays to other devices by what is made of them.

    JAX's C++ calls neither in calls of a jitted function like an earlier one, or of what was compiled ahead. So is_slow
    says of a call's arguments and of the shardings in which the computation takes them whether such calls stay with
    JAX's Python. It does nothing the second time.
    """
    import jax
    from jax._src import array, pjit, stages
    from jax._src.interpreters import pxla

    def fastpath_data(stock):
        def get(executable, out_tree, args, *rest, **named):
            data = stock(executable, out_tree, args, *rest, **named)
            return None if data is None or is_slow(args, data.in_shardings) else data

        return get

    def cpp_call(stock):
        def make(executable, params):
            quick = stock(executable, params)

            def call(*args, **named):
                if is_slow(jax.tree.leaves((args, named)), executable._in_shardings):
                    return stages.Compiled.call(params, *args, **named)[0]
                return quick(*args, **named)

            return quick and call

        return make

    put = pxla.batched_device_put
    if not hasattr(put, "__wrapped__"):
        pxla.batched_device_put = functools.wraps(put)(batched_put(put))
        stock = pxla.shard_arg_handlers[array.ArrayImpl]
        pxla.shard_arg_handlers[array.ArrayImpl] = functools.wraps(stock)(shard_args(stock))
        if data := getattr(pjit, "_get_fastpath_data", None):
            pjit._get_fastpath_data = functools.wraps(data)(fastpath_data(data))
        if call := getattr(pxla.MeshExecutable, "create_cpp_call", None):
            pxla.MeshExecutable.create_cpp_call = functools.wraps(call)(cpp_call(call))


class DevicePut(NamedTuple):
    """The inside of jax.device_put, which takes less than half of its time, and makes none of its checks."""

    shaped: Callable[..., Any]  # (shape, dtype, sharding): the description of an array that put takes
    put: Callable[..., Any]  # (shaped, sharding, parts, devices, committed): the array


def device_put() -> DevicePut | None:
    """Returns None if this version of JAX has not got these parts."""
    try:
        from jax._src.core import ShapedArray, update_aval_with_sharding
        from jax._src.lib import guard_lib, xla_client

        batched_device_put = xla_client.batched_device_put
    except (ImportError, AttributeError):
        return None

    def put(shaped: Any, sharding: Any, parts: Sequence[Any], devices: Sequence[Any], committed: bool) -> Any:
        state = guard_lib.thread_local_state()
        before, state.explicit_device_put = state.explicit_device_put, True
        try:
            return batched_device_put(shaped, sharding, parts, devices, committed)
        finally:
            state.explicit_device_put = before

    return DevicePut(lambda shape, dtype, sharding: update_aval_with_sharding(ShapedArray(shape, dtype), sharding), put)


# --- FFI targets ---


def has_cpu_client() -> bool:
    """Returns whether JAX has made its CPU client, and so has taken FFI targets for itself."""
    from jaxlib import xla_client

    return "Host" in xla_client._custom_callback_handler


def targets(platform: str) -> dict[str, Any]:
    """Returns the FFI targets that jaxlib has for a platform."""
    from jaxlib import xla_client

    return xla_client._xla.custom_call_targets(platform)


def register_target(name: Any, function: Any, platform: str, api_version: int, traits: Any = 0) -> None:
    """Registers an FFI target with jaxlib's own registry."""
    from jaxlib import xla_client

    xla_client._xla.register_custom_call_target(name, function, platform, api_version, traits)


def register_type(name: str, registration: Any) -> None:
    """Registers a type of FFI states with jaxlib's own registry, which assigns its ID."""
    from jaxlib import xla_client

    xla_client._xla.register_custom_type(name, registration)


def handle_registrations(on_type: Callable[..., None], on_target: Callable[..., None]) -> None:
    """Has JAX pass its registrations for CPUs, past and future ones, to these functions."""
    from jaxlib import xla_client

    xla_client.register_custom_type_handler("cpu", on_type)
    xla_client.register_custom_call_handler("cpu", on_target)


# --- settings ---


def traced_by() -> tuple[Any, ...]:
    """Returns the settings of the calling thread that change what JAX makes of a function, and the mesh that is set."""
    from jax._src import config, mesh

    return config.trace_context(), mesh.get_concrete_mesh()


# --- jaxprs ---


def bind(equation: Any, values: Sequence[Any]) -> Sequence[Any]:
    """Computes an equation of a jaxpr, and returns its results."""
    with equation.ctx.manager:
        made = equation.primitive.bind(*values, **equation.primitive.get_bind_params(equation.params))
    return made if equation.primitive.multiple_results else [made]


def replaced(code: bytes, by: Mapping[str, Callable[[Any], Any]]) -> bytes | None:
    """Returns a program with other values in place of the results of some operations.

    by: for an operation's name or the target of a custom call, the function that returns the value, and builds before
      the operation what that needs.

    None is returned if the program has no such operation, or is no StableHLO in portable bytecode, as which jaxlib
    passes all programs, or of a version that jaxlib does not read.
    """
    from jax.extend.mlir import ir
    from jax.extend.mlir.dialects import stablehlo
    from jax.interpreters import mlir

    version = _VERSION.match(code)
    if version is None:
        return None
    found = []

    def visit(op: Any) -> Any:
        name = op.name
        if name == "stablehlo.custom_call":
            name = ir.StringAttr(op.attributes["call_target_name"]).value
        if name in by:
            found.append((op, by[name]))
        return ir.WalkResult.ADVANCE

    with mlir.make_ir_context() as context:
        try:
            module = stablehlo.deserialize_portable_artifact(context, code)
        except ValueError:  # the plugin may be newer than jaxlib
            return None
        module.operation.walk(visit)
        if not found:
            return None
        for op, value in found:
            with ir.InsertionPoint(op), op.location:
                op.results[0].replace_all_uses_with(value(op.opview))
            op.erase()
        module.operation.verify()
        return stablehlo.serialize_portable_artifact(module, version[1].decode(), allow_other_dialects=True)


# --- jaxlib's CPU client, as a compiler ---


def make_cpu_client(num_devices: int) -> Any:
    from jaxlib import xla_client

    return xla_client.make_cpu_client(num_devices=num_devices)


def parse_compile_options(options: bytes) -> Any:
    from jaxlib import xla_client

    return xla_client.CompileOptions.ParseFromString(options)


def compile_for(code: bytes, options: Any, devices: Sequence[Any]) -> None:
    """Compiles a program for one partition per device, and drops the result."""
    import numpy as np
    from jaxlib import xla_client

    ids = np.array([[device.id for device in devices]])
    options.executable_build_options.device_assignment = xla_client.DeviceAssignment.create(ids)
    devices[0].client.compile_and_load(code, xla_client.DeviceList(tuple(devices)), options)
