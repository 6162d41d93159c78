"""jit: traces a function, partitions it over the meshes of a config, and compiles what runs on each."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import pathways_command
from jax.extend.mlir import ir
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from pathways import _private
from pathways._errors import failed_precondition, invalid_argument, unimplemented
from pathways.mpmd import _compiled, _marks
from pathways.mpmd._config import FORWARD_ONLY, SCHEDULE, Config

PARTITION = os.path.join(os.path.dirname(pathways_command.__file__), "_partition.py")
PROGRESS = re.compile(r"I\d{4} |\t- ")  # what the passes say of what they do
STACK = re.compile(r"\n[^\n]*: note: called from")  # the calls that led to an error
TWICE = "more than one fragment with the same mesh, stage"  # in an error of the passes
DIALECTS = ("stablehlo", "mpmd", "ifrt")
UNSUPPORTED = "which pathways.mpmd does not run: compute and print outside of it, from what it returns"
TOLD = 2000  # of what the process that partitions has said, the last characters that an error repeats


class FunctionNamedShardings(NamedTuple):
    """The shardings of a function's arguments and results: trees of NamedSharding."""

    input_specs: Any
    output_specs: Any


class Lowered:
    """A function that was traced and partitioned. `compile()` compiles its fragments."""

    def __init__(self, name: str, config: Config, jax_lowered: Any, in_tree: Any, lines: dict[str, str], done: dict):
        self._name, self._config, self._in_tree, self._lines, self._done = name, config, in_tree, lines, done
        self._jax = jax_lowered
        self._inputs, self._outputs = (
            [_named_sharding(side, config) for side in done[key]] for key in ("inputs", "outputs")
        )
        self._out_tree = jax.tree.structure(jax_lowered.out_info)

    @property
    def function_named_shardings(self) -> FunctionNamedShardings:
        return FunctionNamedShardings(self._in_tree.unflatten(self._inputs), self._out_tree.unflatten(self._outputs))

    def as_text(self, dialect: str = "ifrt") -> str:
        """Returns the module: "stablehlo" as traced, "mpmd" partitioned, or "ifrt" as it runs.

        Raises:
          PathwaysError: INVALID_ARGUMENT for another dialect.
        """
        if dialect not in DIALECTS:
            raise invalid_argument(f"the dialect is {dialect!r}; expected one of {DIALECTS}")
        return self._jax.as_text() if dialect == "stablehlo" else self._done[dialect]

    def compile(self, compiler_options: Mapping[str, Any] | None = None) -> _compiled.Compiled:
        """Compiles the fragments, each for its mesh.

        Args:
          compiler_options: options of XLA for all fragments, as in `jax.jit`.
        """
        meshes = list(self._config.topology.values())
        steps = _compiled.Steps(self._done["plan"], self._config.devices, meshes, self._lines, compiler_options)
        return _compiled.Compiled(
            self._name, steps, self._in_tree, self._out_tree, self._inputs, self._outputs, self._config.topology
        )


class Jitted:
    """A function for the meshes of a config. See `pathways.mpmd.jit`."""

    def __init__(
        self,
        function: Callable[..., Any],
        config: Config,
        in_shardings: Any,
        out_shardings: Any,
        donate_argnums: int | Sequence[int] | None,
    ):
        if not isinstance(config, Config):
            raise invalid_argument(f"mpmd_config is {config!r}; expected what mpmd.make_config returns")
        self._name = getattr(function, "__name__", type(function).__name__)
        self._config = config
        self._sides = in_shardings, out_shardings
        shardings = {}
        for key, side in (("in_shardings", in_shardings), ("out_shardings", out_shardings)):
            if side is not None:
                shardings[key] = jax.tree.map(lambda s, key=key: _abstract(s, config, key), side)
        self._jitted = jax.jit(function, donate_argnums=donate_argnums, keep_unused=True, **shardings)
        self._compiled: dict[Any, _compiled.Compiled] = {}

    def lower(self, *args: Any) -> Lowered:
        """Traces the function for such arguments, and partitions it. Nothing runs.

        Args:
          args: arrays or descriptions of them (jax.ShapeDtypeStruct), and pytrees of them.

        Raises:
          PathwaysError: INVALID_ARGUMENT if the function cannot be partitioned by this config: the message is that of
            jaxlib's passes; UNIMPLEMENTED for callbacks and ordered effects inside, and for named computations in loops
            or branches.
        """
        if not getattr(jax.config, "jax_use_shardy_partitioner", True):
            raise failed_precondition("pathways.mpmd needs Shardy; set jax_use_shardy_partitioner")
        config = self._config
        given = jax.tree.map(lambda x: _described(x, config), args)
        platform = _private.raw_platform(config.devices[0].client)
        lowered = self._jitted.trace(*given).lower(lowering_platforms=(platform,))
        in_tree = jax.tree.structure(args)
        module = lowered.compiler_ir("stablehlo")
        module = ir.Module.parse(module.operation.get_asm(enable_debug_info=True), module.context)
        _refuse(module, in_tree.num_leaves)
        lines, tensors = _marks.rewrite(module)
        self._check("computation", lines)
        self._check("tensor", tensors)
        options = self._options(lowered, in_tree)
        done = _partition(self._name, module.operation.get_asm(enable_debug_info=True), options)
        _check_memories(options["output_meshes"], done["outputs"])
        return Lowered(self._name, config, lowered, in_tree, lines, done)

    def _check(self, what: str, lines: Mapping[str, str]) -> None:
        config = self._config
        for name, line in lines.items():
            if name not in config.name_to_mesh_assignment:
                known = ", ".join(map(repr, config.name_to_mesh_assignment)) or "none"
                raise invalid_argument(
                    f"{line}: the named {what} {name!r} has no mesh; name_to_mesh_assignment has {known}"
                )

    def _options(self, lowered: Any, in_tree: Any) -> dict[str, Any]:
        config = self._config
        sides = [config.input_mesh_assignment, config.output_mesh_assignment]
        if config.read_input_output_mesh_from_shardings:
            sides = [jax.tree.map(lambda s: _mesh_name(s, config), side) for side in self._sides]
        trees = [in_tree, jax.tree.structure(lowered.out_info)]
        meshes = [_broadcast(side, tree) for side, tree in zip(sides, trees, strict=True)]
        assignment = {
            name: [mesh, config.name_to_stage_assignment[name]] if name in config.name_to_stage_assignment else mesh
            for name, mesh in config.name_to_mesh_assignment.items()
        }
        infos = jax.tree.leaves(lowered.args_info[0])
        return {
            "func_name": self._name,
            "named_meshes": [(name, list(mesh.shape.items())) for name, mesh in config.topology.items()],
            "assignment": assignment,
            "input_meshes": meshes[0],
            "output_meshes": meshes[1],
            "donate_argnums": [i for i, info in enumerate(infos) if info.donated],
            "partitioning_options": config.partitioning_options,
        }

    def __call__(self, *args: Any) -> Any:
        """Lowers and compiles the function at the first call for arguments of such types, and runs it."""
        leaves, tree = jax.tree.flatten(args)
        key = tree, tuple((np.shape(x), getattr(x, "dtype", type(x))) for x in leaves)
        if key not in self._compiled:
            self._compiled[key] = self.lower(*args).compile()
        return self._compiled[key](*args)


# --- shardings ---


def _alike(sharding: Any, config: Config) -> bool:
    mesh = config.sharding_mesh
    return (
        isinstance(sharding, NamedSharding)
        and sharding.mesh.axis_names == mesh.axis_names
        and sharding.mesh.axis_sizes == mesh.axis_sizes
    )


def _abstract(sharding: Any, config: Config, what: str) -> NamedSharding:
    """Returns a sharding on the mesh that stands for all of the config."""
    if not _alike(sharding, config):
        raise invalid_argument(
            f"{what} have {sharding!r}; expected a NamedSharding whose mesh has the axes of the config's, "
            f"{dict(config.sharding_mesh.shape)}"
        )
    default = config.devices[0].default_memory().kind
    if sharding.memory_kind not in (None, default):
        raise invalid_argument(
            f"{what} have the memory kind {sharding.memory_kind!r}; expected {default!r}. For a result that comes "
            "straight from a named computation, output_mesh_assignment can name another memory, as in "
            "'mesh#pinned_host'"
        )
    return NamedSharding(config.sharding_mesh, sharding.spec)


def _check_memories(wanted: Sequence[str | None], outputs: Sequence[Mapping[str, Any]]) -> None:
    """Refuses results that would be in another memory than output_mesh_assignment says."""
    for name, side in zip(wanted, outputs, strict=True):
        kind = (name or "").partition("#")[2]
        if kind not in ("", side["memory"] or "device"):
            raise invalid_argument(
                f"output_mesh_assignment has {name!r}, and jaxlib's passes put the result into the memory "
                f"{side['memory'] or 'device'!r}; they use another only for a result that comes straight from a named "
                "computation"
            )


def _mesh_name(sharding: NamedSharding, config: Config) -> str | None:
    return next((name for name, mesh in config.topology.items() if mesh == sharding.mesh), None)


def _broadcast(prefix: Any, tree: Any) -> list[str | None]:
    """Returns the name of a mesh for each leaf of a tree, of which prefix is a prefix; None where it has none."""
    if prefix is None or isinstance(prefix, tuple) and not prefix:
        return [None] * tree.num_leaves
    whole = tree.unflatten([None] * tree.num_leaves)
    # A leaf of the prefix is a name or None, either of which stands for a whole subtree.
    try:
        named = jax.tree.map(
            lambda name, part: jax.tree.map(lambda _: name, part, is_leaf=lambda x: x is None),
            prefix,
            whole,
            is_leaf=lambda x: x is None or isinstance(x, str),
        )
    except ValueError as error:
        raise invalid_argument(f"the meshes of arguments or results are not a prefix of their tree: {error}") from None
    return jax.tree.leaves(named, is_leaf=lambda x: x is None)


def _described(x: Any, config: Config) -> Any:
    """Returns what the function is traced with: arguments are on different devices, which jit would refuse."""
    if isinstance(x, jax.core.Tracer):
        raise failed_precondition("a function of pathways.mpmd.jit cannot be called inside a function that JAX traces")
    if not isinstance(x, jax.Array | jax.ShapeDtypeStruct):
        return x
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):  # a random key
        return jax.ShapeDtypeStruct(x.shape, x.dtype)
    sharding = NamedSharding(config.sharding_mesh, x.sharding.spec) if _alike(x.sharding, config) else None
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding, weak_type=bool(x.weak_type))


def _named_sharding(side: Mapping[str, Any], config: Config) -> NamedSharding:
    spec = [tuple(axes) for axes in side["spec"]]
    while spec and not spec[-1]:
        spec.pop()
    memory = None if side["memory"] == "device" else side["memory"]
    return NamedSharding(config.topology[side["mesh"]], P(*spec), memory_kind=memory)


# --- partitioning ---


def _refuse(module: ir.Module, num_arguments: int) -> None:
    """Raises an error for what fragments cannot have."""
    main = ir.SymbolTable(module.operation)["main"].operation
    if len(main.regions[0].blocks[0].arguments) != num_arguments:
        raise unimplemented(f"the function has ordered effects, {UNSUPPORTED}")
    for op in _marks.operations(module.operation, "stablehlo.custom_call"):
        target = ir.StringAttr(op.attributes["call_target_name"]).value
        if "python" in target and "callback" in target:
            raise unimplemented(f"the function has a callback (jax.debug.print, say), {UNSUPPORTED}")
    for line, kind, name, (control, of) in _marks.controlled(module):
        what = f"the named {kind} {name!r}" if kind in ("computation", "tensor") else f"an mpmd.{kind}"
        instead = "unroll it with a Python loop" if control == "loop" else "decide in Python"
        raise unimplemented(
            f"{line}: {what} is in a {control} ({of}), which jaxlib's passes cannot cut into fragments; put the "
            f"whole {control} into one named computation, or {instead}"
        )


def _partition(name: str, text: str, options: dict[str, Any]) -> dict[str, Any]:
    """Partitions a module in a process of its own: see _partition.py there."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, PARTITION],
        input=json.dumps({"module": text, "options": options}),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode != 0 or not done.stdout:
        schedule = options["partitioning_options"][SCHEDULE]
        only = f"; {schedule} is for functions without gradients" if schedule in FORWARD_ONLY else ""
        said = [line for line in done.stderr.splitlines() if line and not PROGRESS.match(line)] or ["no message"]
        if done.returncode < 0 and "complex<" in text:
            only += "; keep complex numbers inside of named computations"
        ended = f"crashed by signal {-done.returncode}" if done.returncode < 0 else f"ended with {done.returncode}"
        raise invalid_argument(
            f"jaxlib's passes cannot partition {name} by the schedule {schedule}{only}. They {ended}: "
            f"{' '.join(said)[-TOLD:]}"
        )
    answer = json.loads(done.stdout)
    if "error" in answer:
        what = STACK.split(answer["error"])[0].strip()
        if TWICE in what:
            what += (
                "\nExpected at most one computation of a stage outside of mpmd.call: assign another one, such as an "
                "optimizer's step, to the same mesh by a name of its own, without a stage"
            )
        raise invalid_argument(f"{name} cannot be partitioned: {what}")
    return answer


def jit(
    func: Callable[..., Any],
    mpmd_config: Config,
    *,
    in_shardings: Any = None,
    out_shardings: Any = None,
    donate_argnums: int | Sequence[int] | None = None,
) -> Jitted:
    """Partitions a function over the meshes of a config: `jit(f, config).lower(*args).compile()` returns a callable.

    Args:
      func: a function of arrays and pytrees of them, with named computations.
      mpmd_config: the assignment of computations to meshes, from `make_config`.
      in_shardings, out_shardings: as in `jax.jit`: pytrees of NamedSharding or prefixes of them, on any mesh with the
        config's axes. Only their specs are used, unless the config reads meshes from them. They have the default
        memory kind.
      donate_argnums: the arguments whose memory may be reused; a call deletes them or, for uncommitted arrays, their
        copies on the mesh.

    Raises:
      PathwaysError: INVALID_ARGUMENT for a config that `make_config` has not made, and for shardings with other axes or
        of another memory.
    """
    return Jitted(func, mpmd_config, in_shardings, out_shardings, donate_argnums)
