"""Weights that one part of a script writes and another reads on other devices: see `pathways.sync`.

A version is sent by a program that reshards the whole tree, so the plan of who sends what to whom is made once, and a
push is one message. What it returns are arrays whose bytes are under way. A version is shown to readers when all of
its arrays are there, so none sees a part of it.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

from pathways import _capture, _passage, _program, _reshard
from pathways._errors import PathwaysError

LOOK = 0.002  # seconds between looks whether a version has arrived, for a wait that has a timeout


@jax.jit
def _copy(x):
    return jnp.copy(x)


class _Version:
    """One version on its way: its number, and its arrays."""

    def __init__(self, number: int, params: Any):
        self.number, self.params = number, params
        # A random key itself cannot be asked whether it is ready.
        self._leaves = [jax.random.key_data(x) if _is_key(x) else x for x in jax.tree.leaves(params)]

    def is_there(self) -> bool:
        """Returns whether all of it has arrived, or some of it failed."""
        return all(x.is_ready() for x in self._leaves)

    def arrive(self) -> None:
        """Waits until all of it has arrived; raises why some of it did not."""
        jax.block_until_ready(self._leaves)


@dataclass
class _Failure:
    """Why a version did not arrive, and whether a push or a wait has raised that."""

    number: int
    error: Exception
    raised: bool = False

    def take(self) -> Exception:
        """Returns the error to raise: a copy, as what is raised keeps the frames that it passes, with their arrays."""
        self.raised = True
        return copy.copy(self.error)


class Weights:
    """The newest version of some weights on the devices that read them. `pathways.sync` makes one.

    Any thread may call any method. At most two versions are kept here: the newest that has arrived, and one on its way.
    """

    def __init__(self, params: Any, to: Any, dtype: Any = None):
        leaves, self._structure = jax.tree.flatten(params)
        self._paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
        _refuse_traced(leaves)
        for path, x in zip(self._paths, leaves, strict=True):
            if not isinstance(x, jax.Array):
                raise PathwaysError(
                    "INVALID_ARGUMENT", f"sync sends JAX arrays, and {_at(path)} is {type(x)}; use jax.device_put first"
                )
        targets = self._targets(params, to)
        if dtype is not None and not _is_floating(dtype):
            raise PathwaysError(
                "INVALID_ARGUMENT", f"sync's dtype is {dtype!r}; expected a floating-point one, or None"
            )
        self._avals = [(x.shape, x.dtype) for x in leaves]
        dtypes = [_cast_of(x, dtype) for x in leaves]

        def sync(leaves):
            return [_send(x, target, to_type) for x, target, to_type in zip(leaves, targets, dtypes, strict=True)]

        self._program = _program.Program(sync, None, None, None, None)
        self._pushing = threading.Lock()  # held by a push; taken before _lock
        self._lock = threading.Lock()  # guards the rest
        self._newest: _Version | None = None  # that has arrived
        self._coming: _Version | None = None
        self._failed: _Failure | None = None  # of the last version that did not arrive
        self._pushed = -1
        self.push(params)

    def push(self, params: Any) -> int:
        """Sends a new version of the weights, and returns its number: 1, 2 … (`sync` sent version 0).

        It does not wait for the bytes. You may donate or delete the arrays as soon as it has returned. If the previous
        version is still on its way, it first waits for that one: readers' devices hold two versions at most.

        Args:
          params: arrays in a tree of the same structure, with the same shapes and dtypes. If their shardings have
            changed, a new plan is made.

        Raises:
          PathwaysError: INVALID_ARGUMENT if the tree is not like the first one.
          PathwaysError: FAILED_PRECONDITION inside a function that JAX traces or a program captures.
          jax.errors.JaxRuntimeError: if an earlier version did not arrive, and no push or wait has raised that yet,
            with the reason. This version is not sent; push it again when the cause is fixed.
        """
        leaves = self._check(params)
        with self._pushing:
            with self._lock:
                before = self._coming
            if before is not None:
                self._settle(before)
            with self._lock:
                if self._failed is not None and not self._failed.raised:
                    raise self._failed.take()
            # The caller's jax.set_mesh may be of other devices than some of these.
            sent = _passage.unbound(
                lambda: _Version(self._pushed + 1, self._structure.unflatten(self._program(leaves)))
            )
            with self._lock:
                self._pushed, self._coming = sent.number, sent
                return sent.number

    def latest(self) -> tuple[int, Any]:
        """Returns the newest version that has arrived: its number, and its arrays.

        It waits only for the very first. A version that failed is not returned; `push` and `wait` raise the reason. All
        callers get the same arrays, so do not donate or delete them.
        """
        with self._lock:
            newest, coming = self._newest, self._coming
        if coming is not None and (newest is None or coming.is_there()):
            self._settle(coming)
        with self._lock:
            if self._newest is None:
                raise copy.copy(self._failed.error)
            return self._newest.number, self._newest.params

    def wait(self, version: int | None = None, timeout: float | None = None) -> tuple[int, Any]:
        """Waits until a version, or a newer one, has arrived, and returns the newest that has.

        Args:
          version: its number; None means the newest that was pushed.
          timeout: seconds; None waits for as long as its bytes may still come.

        Raises:
          PathwaysError: INVALID_ARGUMENT for a version that was not pushed yet, DEADLINE_EXCEEDED after the timeout.
          jax.errors.JaxRuntimeError: if it did not arrive, with the reason.
        """
        until = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            wanted = self._pushed if version is None else version
            if not 0 <= wanted <= self._pushed:
                raise PathwaysError(
                    "INVALID_ARGUMENT", f"version {wanted} was not pushed; the newest is {self._pushed}"
                )
            newest, coming = self._newest, self._coming
        if coming is not None and coming.number <= wanted and (newest is None or newest.number < wanted):
            while until is not None and not coming.is_there():
                if time.monotonic() >= until:
                    raise PathwaysError(
                        "DEADLINE_EXCEEDED", f"version {coming.number} did not arrive within {timeout} s"
                    )
                time.sleep(LOOK)
            self._settle(coming)
        with self._lock:
            if self._newest is None or self._newest.number < wanted:
                raise self._failed.take()
            return self._newest.number, self._newest.params

    def _settle(self, version: _Version) -> None:
        """Waits for a version, and records that it has arrived, or why not."""
        failed = None
        try:
            version.arrive()
        except Exception as error:
            failed = _Failure(version.number, error.with_traceback(None))
        with self._lock:
            if self._coming is version:
                self._coming = None
                if failed is None:
                    self._newest = version
                else:
                    self._failed = failed

    def _targets(self, params: Any, to: Any) -> list[Sharding]:
        """Returns where each leaf goes."""
        try:
            targets = jax.tree.leaves(jax.tree.broadcast(to, params))
        except ValueError as error:
            raise PathwaysError("INVALID_ARGUMENT", f"`to` is not a prefix of the weights' tree: {error}") from None
        targets = [SingleDeviceSharding(t) if isinstance(t, jax.Device) else t for t in targets]
        for path, x, target in zip(self._paths, jax.tree.leaves(params), targets, strict=True):
            if not isinstance(target, Sharding):
                raise PathwaysError(
                    "INVALID_ARGUMENT", f"cannot send {_at(path)} to {target!r}; expected a Sharding or a Device"
                )
            try:
                target.devices_indices_map(x.shape)
            except (ValueError, IndexError):
                raise PathwaysError(
                    "INVALID_ARGUMENT",
                    f"{_at(path)} of shape {list(x.shape)} cannot have the sharding {target}; expected one that fits "
                    "its dimensions: pass a tree of shardings, one for each array or subtree",
                ) from None
        return targets

    def _check(self, params: Any) -> list[jax.Array]:
        """Returns the leaves of a new version."""
        leaves, structure = jax.tree.flatten(params)
        _refuse_traced(leaves)
        if structure != self._structure:
            raise PathwaysError(
                "INVALID_ARGUMENT", f"the weights' tree was {self._structure} when sync was called, and is {structure}"
            )
        for path, x, (shape, dtype) in zip(self._paths, leaves, self._avals, strict=True):
            if not isinstance(x, jax.Array) or x.shape != shape or x.dtype != dtype:
                was = f"{dtype}{list(shape)}"
                now = f"{x.dtype}{list(x.shape)}" if isinstance(x, jax.Array) else repr(type(x))
                raise PathwaysError(
                    "INVALID_ARGUMENT",
                    f"{_at(path)} was {was} when sync was called, and is {now}; call pathways.sync again for such"
                    " weights",
                )
        return leaves


def _at(path: str) -> str:
    return f"params{path}"


def _is_key(x: jax.Array) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _is_floating(dtype: Any) -> bool:
    try:
        return jnp.issubdtype(jnp.dtype(dtype), jnp.floating)
    except TypeError:  # it is none
        return False


def _refuse_traced(leaves: Sequence[Any]) -> None:
    if _capture.capturing() or any(isinstance(x, jax.core.Tracer) for x in leaves):
        raise PathwaysError(
            "FAILED_PRECONDITION",
            "weights are not sent from inside a function that JAX traces or a program captures; return them from it, "
            "and push what it returns",
        )


def _cast_of(x: jax.Array, dtype: Any) -> np.dtype:
    """Returns the dtype that an array has on the devices that read it."""
    if dtype is None or not jnp.issubdtype(x.dtype, jnp.floating):
        return x.dtype
    return jnp.dtype(dtype)


def _send(x: jax.Array, target: Sharding, dtype: np.dtype) -> jax.Array:
    """Sends an array, in the narrower of its two dtypes."""
    narrows = dtype.itemsize < x.dtype.itemsize
    if narrows:
        x = x.astype(dtype)
    there = _copy(x) if x.sharding.is_equivalent_to(target, x.ndim) and not narrows else _reshard.reshard(x, target)
    return there if there.dtype == dtype else there.astype(dtype)
