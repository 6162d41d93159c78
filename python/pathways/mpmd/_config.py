"""The meshes, and the assignment of a function's parts to them: the config of `pathways.mpmd.jit`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from pathways import _reshard
from pathways._errors import invalid_argument
from pathways._text import plain

# The schedules that jaxlib lowers, and whether they split a backward into gradients of inputs and of weights.
SCHEDULES = {
    "GPipe": False,
    "1F1B": False,
    "GPipeBut1F1BForLastMesh": False,
    "Circular": False,
    "CircularWithReversedBackward": False,
    "ZeroBubbleH1": True,
    "ZeroBubbleH2ZeroTxLatency": True,
    "ZeroBubbleH2HalfTxLatency": True,
    "ZeroBubbleH2FullTxLatency": True,
    "ParallelPipelinesWithWrapAround": False,
}
SYNONYMS = {"onefwdonebwd": "1f1b", "zbh1": "zerobubbleh1", "zbh2": "zerobubbleh2zerotxlatency"}
FORWARD_ONLY = ("ParallelPipelinesWithWrapAround",)
SCHEDULE, SPLIT = "mpmd_pipeline_schedule", "mpmd_split_bwd_fragments"
# Options of jaxlib's passes. It ends the process at a value of another type.
OPTIONS = (
    "mpmd_infer_transfers",
    "mpmd_infer_cross_mesh_reductions",
    "mpmd_fragment_remat",
    "mpmd_merge_remat_fragments",
    SPLIT,
    "mpmd_assume_homogeneous_devices",
    "mpmd_absorb_inferred_fragments_on_entry_point_function",
    "mpmd_copy_constant_creation_from_producer_to_consumer",
    "mpmd_apply_merge_transfers_pass",
    "mpmd_merge_inferred_after_scheduling",
)


@dataclass(frozen=True)
class Config:
    """The config that `make_config` returns, with its arguments as attributes."""

    topology: Mapping[str, Mesh]
    name_to_mesh_assignment: Mapping[str, str]
    name_to_stage_assignment: Mapping[str, int] = field(default_factory=dict)
    input_mesh_assignment: Any = ()
    output_mesh_assignment: Any = ()
    partitioning_options: Mapping[str, bool | str] = field(default_factory=dict)
    read_input_output_mesh_from_shardings: bool = False
    pipeline_schedule: str | None = None

    @property
    def sharding_mesh(self) -> jax.sharding.AbstractMesh:
        """The mesh, without devices, that shardings inside of the function are of: all meshes are alike."""
        return next(iter(self.topology.values())).abstract_mesh

    @property
    def devices(self) -> list[jax.Device]:
        """The devices of all meshes, mesh after mesh."""
        return [device for mesh in self.topology.values() for device in mesh.devices.flat]


def make_config(
    topology: Mapping[str, Mesh],
    name_to_mesh_assignment: Mapping[str, str],
    *,
    name_to_stage_assignment: Mapping[str, int] | None = None,
    input_mesh_assignment: Any = (),
    output_mesh_assignment: Any = (),
    partitioning_options: Mapping[str, bool | str] | None = None,
    read_input_output_mesh_from_shardings: bool = False,
    pipeline_schedule: str | None = None,
) -> Config:
    """Makes a config for `jit`.

    Args:
      topology: meshes by name, on devices of Pathways, no device in two of them. They have the same axes.
      name_to_mesh_assignment: the name of the mesh of each named computation or tensor.
      name_to_stage_assignment: the number of the pipeline's stage, from 0, of named computations. Those of one stage
        are merged into one computation. If a mesh has several stages, schedules tell them apart by it.
      input_mesh_assignment, output_mesh_assignment: the mesh of each argument or result: pytrees of names and None, or
        prefixes of them. None means the mesh of the computation that uses or makes the array.
      partitioning_options: options of jaxlib's passes, such as mpmd_infer_transfers, by name.
      read_input_output_mesh_from_shardings: the meshes of jit's in_shardings and out_shardings are those assignments.
      pipeline_schedule: a name of SCHEDULES. Case and punctuation do not matter, and OpenXLA's names, such as
        ZERO_BUBBLE_H1, are known, too.

    Raises:
      PathwaysError: INVALID_ARGUMENT for a name that is unknown, or meshes that do not fit each other.
    """
    _check_meshes(topology)
    _check_names("name_to_mesh_assignment", name_to_mesh_assignment.values(), topology)
    sides = {"input_mesh_assignment": input_mesh_assignment, "output_mesh_assignment": output_mesh_assignment}
    for name in jax.tree.leaves(input_mesh_assignment):
        if isinstance(name, str) and "#" in name:
            raise invalid_argument(
                f"input_mesh_assignment names {name!r}; expected a mesh without a memory kind: arguments are in their "
                "mesh's default memory"
            )
    for what, tree in sides.items():
        _check_names(what, jax.tree.leaves(tree), topology)
        if read_input_output_mesh_from_shardings and jax.tree.leaves(tree):
            raise invalid_argument(
                f"{what} and read_input_output_mesh_from_shardings both say where arrays are; pass one of them"
            )
    stages = dict(name_to_stage_assignment or {})
    for name, stage in stages.items():
        if not isinstance(stage, int) or stage < 0:
            raise invalid_argument(f"the stage of {name!r} is {stage!r}; expected a whole number from 0")
        if name not in name_to_mesh_assignment:
            raise invalid_argument(f"{name!r} has a stage and no mesh; add it to name_to_mesh_assignment")
    schedule = None if pipeline_schedule is None else schedule_of(pipeline_schedule)
    options = _options(partitioning_options or {}, schedule)
    return Config(
        dict(topology),
        dict(name_to_mesh_assignment),
        stages,
        input_mesh_assignment,
        output_mesh_assignment,
        options,
        read_input_output_mesh_from_shardings,
        schedule,
    )


def schedule_of(name: Any) -> str:
    """Returns jaxlib's name of a schedule."""
    known = {plain(schedule): schedule for schedule in SCHEDULES}
    found = known.get(SYNONYMS.get(plain(name), plain(name))) if isinstance(name, str) else None
    if found is None:
        raise invalid_argument(f"pipeline_schedule is {name!r}; expected one of {', '.join(SCHEDULES)}")
    return found


def _options(given: Mapping[str, bool | str], schedule: str | None) -> dict[str, bool | str]:
    options = dict(given)
    if SCHEDULE in options:
        named = schedule_of(options.pop(SCHEDULE))
        if schedule not in (None, named):
            raise invalid_argument(f"pipeline_schedule is {schedule}, and partitioning_options name {named}")
        schedule = named
    for name, value in options.items():
        if name not in OPTIONS:
            raise invalid_argument(f"partitioning_options have {name!r}; expected some of {', '.join(OPTIONS)}")
        if not isinstance(value, bool):
            raise invalid_argument(f"the option {name} is {value!r}; expected True or False")
    options[SCHEDULE] = schedule or "none"
    if schedule is not None and options.setdefault(SPLIT, SCHEDULES[schedule]) is not True and SCHEDULES[schedule]:
        raise invalid_argument(f"the schedule {schedule} needs {SPLIT}; leave it out or set it to True")
    return options


def _check_meshes(topology: Mapping[str, Mesh]) -> None:
    if not isinstance(topology, Mapping) or not topology:
        raise invalid_argument(f"the topology is {topology!r}; expected a dict of at least one mesh")
    used: dict[jax.Device, str] = {}
    first_name, first = next(iter(topology.items()))
    for name, mesh in topology.items():
        if not isinstance(name, str) or not name or set("@#") & set(name):
            raise invalid_argument(f"a mesh is called {name!r}; expected a text without @ and #")
        if not isinstance(mesh, Mesh):
            raise invalid_argument(f"the mesh {name!r} is {mesh!r}; expected a jax.sharding.Mesh")
        if tuple(mesh.shape.items()) != tuple(first.shape.items()):
            raise invalid_argument(
                f"the mesh {name!r} has axes {dict(mesh.shape)}, and {first_name!r} has {dict(first.shape)}; expected "
                "the same names and sizes"
            )
        if not _reshard._ours(NamedSharding(mesh, jax.sharding.PartitionSpec())):
            raise invalid_argument(f"the mesh {name!r} is not on devices of Pathways; make it of pathways.devices()")
        for device in mesh.devices.flat:
            if device in used:
                raise invalid_argument(f"device {device.id} is in the meshes {used[device]!r} and {name!r}")
            used[device] = name


def _check_names(what: str, names: Iterable[Any], topology: Mapping[str, Mesh]) -> None:
    """Checks names of meshes, which may end in #memory_kind."""
    for name in names:
        if name is not None and (not isinstance(name, str) or name.partition("#")[0] not in topology):
            raise invalid_argument(f"{what} names a mesh {name!r}; expected one of {', '.join(map(repr, topology))}")
