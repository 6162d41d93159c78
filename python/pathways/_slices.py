"""Virtual device sets: devices that are granted to this process together.

The resource manager is the library itself for the devices of this process, and the controller for those of a cluster.
The controller knows the slices of all sessions.
"""

from __future__ import annotations

import ctypes
import functools
import math
import operator
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pathways import _backend, _native, _program
from pathways._errors import failed_precondition, invalid_argument

if TYPE_CHECKING:
    import jax


class _Name(ctypes.Structure):
    _fields_ = (("session", ctypes.c_uint64), ("number", ctypes.c_uint64))


@functools.cache
def _library() -> ctypes.CDLL:
    library = _native.load()
    devices = ctypes.POINTER(ctypes.c_uint32)
    _native.declare(
        library,
        (
            "pathways_slice_ask",
            ctypes.c_void_p,
            [
                ctypes.c_int64,
                ctypes.POINTER(ctypes.c_int64),
                ctypes.c_size_t,
                ctypes.c_char_p,
                ctypes.c_char_p,
                ctypes.c_bool,
                ctypes.c_double,
                ctypes.c_int32,
                ctypes.POINTER(_Name),
            ],
        ),
        (
            "pathways_slice_wait",
            ctypes.c_void_p,
            [
                _Name,
                ctypes.c_double,
                devices,
                ctypes.c_size_t,
                ctypes.POINTER(ctypes.c_int64),
                ctypes.POINTER(ctypes.c_void_p),
            ],
        ),
        ("pathways_slice_remap", ctypes.c_void_p, [_Name, devices, ctypes.c_size_t]),
        ("pathways_slice_release", None, [_Name]),
    )
    return library


def _number(name: str, value: Any) -> int:
    try:
        n = operator.index(value)
    except TypeError:
        n = -1
    if not 0 < n < 1 << 31:
        raise invalid_argument(f"{name} is {value!r}; expected a positive whole number")
    return n


def _seconds(value: Any) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if not seconds >= 0:
        raise invalid_argument(f"wait is {value!r}; expected seconds, 0 or more; math.inf has no end")
    return seconds


_POLL = 0.2  # seconds for which Python waits before it looks for Ctrl-C
_QUIET = 1.0  # seconds for which nothing is said of a wait, and between two lines


class Slice:
    """Devices that were granted together: JAX devices, for meshes, shardings, `pmap` and `device_put`.

    As a context manager, a slice is released at the end of the block.
    """

    def __init__(
        self,
        devices: int,
        topology: tuple[int, ...],
        island: str | None,
        kind: str | None,
        exclusive: bool = False,
        wait: float = 0.0,
        priority: int = 0,
    ):
        have = _backend.all_devices()
        self.topology = topology or (devices,)  # the shape of the slice; `devices` is row-major in it
        self.island, self.kind, self.exclusive = island, kind, exclusive
        self._name, self._granted = _Name(), (ctypes.c_uint32 * min(devices, len(have)))()
        sizes = (ctypes.c_int64 * len(topology))(*topology)
        words = [(word or "").encode() for word in (island, kind)]
        _native.check(
            _library().pathways_slice_ask(
                devices, sizes, len(sizes), *words, exclusive, _seconds(wait), priority, self._name
            )
        )
        self._count = devices
        self._of = have  # the devices of the session
        self._devices: list[jax.Device] | None = None  # None while the request waits
        self._position, self._lacks = 1, ""
        self._released = False

    def _look(self, seconds: float) -> bool:
        """Waits for the devices for some seconds, and reports whether they were granted."""
        if self._released:
            raise failed_precondition(f"{self!r} was released; ask for another with add_slice()")
        if self._devices is not None:
            return True
        position, lacks = ctypes.c_int64(), ctypes.c_void_p()
        _native.check(
            _library().pathways_slice_wait(
                self._name, seconds, self._granted, len(self._granted), ctypes.byref(position), ctypes.byref(lacks)
            )
        )
        self._position = position.value
        if position.value:
            self._lacks = _native.text(lacks)
            return False
        self._devices = [self._of[i] for i in self._granted]
        return True

    def wait(self) -> Slice:
        """Waits until the devices are granted, and returns the slice. A terminal shows the request's place in the
        queue, and who has the devices. Ctrl-C cancels the request.

        Raises:
          PathwaysError: RESOURCE_EXHAUSTED if others still have the devices when the request's wait ends;
            FAILED_PRECONDITION if the slice was released; UNAVAILABLE if its session has ended.
        """
        told, quiet = "", time.monotonic() + _QUIET
        try:
            while not self._look(_POLL):
                text = f"waiting for {self}: {self._lacks}"
                if text != told and time.monotonic() >= quiet:
                    told, quiet = text, time.monotonic() + _QUIET
                    _backend.tell(text)
        except BaseException:
            self.release()
            raise
        if told:
            _backend.tell(f"got {self}")
        return self

    @property
    def position(self) -> int:
        """The request's place in the queue: 1 is next; 0 if the devices are granted.

        Raises:
          PathwaysError: those of `wait`, if the request has ended without devices.
        """
        return 0 if self._look(0.0) else self._position

    @property
    def devices(self) -> list[jax.Device]:
        """The devices, row-major in `topology`. Waits for them.

        Raises:
          PathwaysError: FAILED_PRECONDITION if the slice was released; those of `wait`.
        """
        if self._released or self._devices is None:
            self.wait()
        return list(self._devices or ())

    @property
    def tpus(self) -> list[jax.Device]:
        """The devices, by the paper's name for them."""
        return self.devices

    def remap(self) -> dict[jax.Device, jax.Device]:
        """Requests devices again, with the same constraints.

        Devices of lost workers are replaced, and others if there are devices with fewer slices. Devices that stay keep
        their position in `devices`, unless the slice was made with a topology. Arrays do not move; those on a lost
        worker are lost. Programs that were captured on replaced devices are captured again at their next call; a mesh,
        a sharding or a `pmap` that was made from the old devices outside of a program still uses those.

        Returns:
          a dictionary from each replaced device to the device in its place. Empty if nothing changed.

        Raises:
          PathwaysError: RESOURCE_EXHAUSTED if there are now too few such devices, FAILED_PRECONDITION if the slice was
            released, UNAVAILABLE if its session has ended. The slice does not change then.
        """
        before = self.devices
        granted = (ctypes.c_uint32 * len(before))()
        _native.check(_library().pathways_slice_remap(self._name, granted, len(before)))
        self._devices = [self._of[i] for i in granted]
        changed = {old: new for old, new in zip(before, self._devices, strict=True) if old != new}
        if changed:
            _program.left({device.id for device in changed})
        return changed

    def release(self) -> None:
        """Ends the grant, or cancels the request. The devices can still be used, but new slices prefer them.

        A second call does nothing.
        """
        if not self._released:
            self._released = True
            _library().pathways_slice_release(self._name)

    def __len__(self) -> int:
        return self._count

    def __enter__(self) -> Slice:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        wants = "".join(f", {name}={v!r}" for name, v in (("island", self.island), ("kind", self.kind)) if v)
        wants += ", exclusive" if self.exclusive else ""
        shape = f", topology={self.topology}" if len(self.topology) > 1 else ""
        what = f"{self._count} device{'s' if self._count > 1 else ''}"
        state = ", released" if self._released else ""
        if self._devices is not None:
            what = f"devices [{', '.join(str(device.id) for device in self._devices)}]"
        elif not self._released:
            state = f", number {self._position} in the queue"
        return f"<Slice of {what}{shape}{wants}{state}>"

    def _repr_svg_(self) -> str:
        return _svg([self])


def _count_and_shape(count: int | None, topology: Sequence[int] | None) -> tuple[int, tuple[int, ...]]:
    """The number of devices that a request names, and its topology; () without one."""
    try:
        shape = tuple(_number("a size of the topology", n) for n in topology or ())
    except TypeError:
        raise invalid_argument(
            f"topology is {topology!r}; expected the sizes of the slice's shape, such as (2, 2)"
        ) from None
    if count is None and not shape:
        raise invalid_argument("the number of devices is missing; pass devices= or topology=")
    return _number("devices", math.prod(shape) if count is None else count), shape


class VirtualDeviceSet:
    """A set of slices. As a context manager, it releases them at the end of the block."""

    def __init__(self) -> None:
        self._slices: list[Slice] = []

    def add_slice(
        self,
        devices: int | None = None,
        topology: Sequence[int] | None = None,
        island: str | None = None,
        kind: str | None = None,
        *,
        tpu_devices: int | None = None,
        exclusive: bool = False,
        wait: float = 0.0,
        priority: int = 0,
        block: bool = True,
    ) -> Slice:
        """Requests a slice from the resource manager, and waits for the answer.

        You get the devices that the fewest slices of all users have, from one worker if possible, else from one island.
        Slices share devices if there are not enough, unless they are exclusive.

        A request that has to wait joins a queue of all users' requests: each user's first before anyone's second; of
        these, the users with the fewest exclusive devices first; then in order of arrival. `pathways queue` shows it.

        Args:
          devices: the number of devices.
          topology: the slice's shape; the product of its sizes is the number of devices. Devices along the last
            dimension are neighbors, from one worker if one has enough. With it, `devices` may be omitted.
          island: the name of their island, as `pathways status` shows it; None means any.
          kind: their `device.device_kind`; None means any.
          tpu_devices: the paper's name for `devices`.
          exclusive: no other slice has the devices, and no other session can use them, until the slice is released. On
            a cluster the request also waits until no other session has arrays or computations on them.
          wait: the seconds that the request may wait for devices of others; `math.inf` waits forever.
          priority: among your own requests that wait, -100 to 100; every minute of waiting counts as one more.
          block: if false, returns at once. The slice's `position` is its place in the queue, and `devices` and
            `wait()` wait for the devices.

        Raises:
          PathwaysError: INVALID_ARGUMENT for an unknown island or kind, or an invalid request; RESOURCE_EXHAUSTED if
            there are too few such devices, or others have them for longer than `wait`. The message says which are
            available, and who has the others.
        """
        if devices is not None and tpu_devices is not None:
            raise invalid_argument("devices and tpu_devices are two names for the same number; pass only one")
        if not isinstance(priority, int) or not -1 << 31 <= priority < 1 << 31:
            raise invalid_argument(f"priority is {priority!r}; expected a whole number, -100 to 100")
        count, shape = _count_and_shape(devices if devices is not None else tpu_devices, topology)
        slice_ = Slice(count, shape, island, kind, bool(exclusive), wait, priority)
        if block:
            slice_.wait()
        self._slices.append(slice_)
        return slice_

    @property
    def slices(self) -> list[Slice]:
        """The slices that were added and have not been released."""
        self._slices = [s for s in self._slices if not s._released]
        return list(self._slices)

    @property
    def devices(self) -> list[jax.Device]:
        """The devices of all slices, each once."""
        return list(dict.fromkeys(device for s in self.slices for device in s.devices))

    def release(self) -> None:
        """Releases all slices."""
        for s in self.slices:
            s.release()

    def __enter__(self) -> VirtualDeviceSet:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<VirtualDeviceSet of {self.slices}>"

    def _repr_svg_(self) -> str | None:
        return _svg(self.slices) if self.slices else None


# --- what a notebook shows ---

_CELL, _LEFT, _TOP = 30, 96, 30  # pixels
_ACROSS = 32  # devices drawn in a row; further ones follow below


def _state(slice_: Slice) -> str:
    if slice_._released:
        return " (released)"
    return "" if slice_._devices is not None else " (waits)"


def _svg(slices: Sequence[Slice]) -> str:
    """Draws a row per slice, with a cell for each device of the session, filled if the slice has it."""
    ids = sorted(device.id for device in slices[0]._of)
    lines = math.ceil(len(ids) / _ACROSS)
    width = _LEFT + _CELL * min(len(ids), _ACROSS) + 12
    height = _TOP + (_CELL * lines + 8) * len(slices)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="12"><rect width="{width}" height="{height}" fill="#fff"/>'
        f'<text x="{_LEFT}" y="20" fill="#555">devices</text>'
    ]
    for row, slice_ in enumerate(slices):
        top = _TOP + (_CELL * lines + 8) * row
        name = f"slice {row}" if len(slices) > 1 else "slice"
        parts.append(f'<text x="8" y="{top + 19}">{name}{_state(slice_)}</text>')
        held = {device.id for device in slice_._devices or ()}
        for at, number in enumerate(ids):
            x, y = _LEFT + _CELL * (at % _ACROSS), top + _CELL * (at // _ACROSS)
            fill, ink = ("#0072b2", "#fff") if number in held else ("#f1f3f5", "#999")
            parts.append(
                f'<rect x="{x + 1}" y="{y + 1}" width="{_CELL - 2}" height="{_CELL - 2}" rx="3" fill="{fill}"/>'
                f'<text x="{x + _CELL / 2:g}" y="{y + 19}" text-anchor="middle" fill="{ink}">{number}</text>'
            )
    return "\n".join([*parts, "</svg>\n"])
