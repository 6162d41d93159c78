"""Has `jax.lax.pbroadcast` run on CPU devices.

JAX does not lower it there, and XLA's CPU compiler refuses the instruction. So it becomes a tree of permutes: in each
round, every device that has the array sends it to one that does not. Other platforms keep JAX's own lowering.
"""

from __future__ import annotations

import functools
from typing import Any

from pathways import _private


@functools.cache
def install() -> None:
    """Registers the lowering with JAX, once."""
    _private.lower("pbroadcast_p", "cpu", _broadcast)


def _broadcast(x: Any, *, axis_name: Any, source: int) -> Any:
    """Returns the x of the device at index source of the axis, with its bits."""
    import jax.numpy as jnp
    from jax import lax

    devices = lax.axis_size(axis_name)
    place = (lax.axis_index(axis_name) - source) % devices
    have = 1
    while have < devices:
        pairs = [((source + i) % devices, (source + i + have) % devices) for i in range(min(have, devices - have))]
        came = lax.ppermute(x, axis_name, pairs)
        x = jnp.where((place >= have) & (place < 2 * have), came, x)
        have *= 2
    return x
