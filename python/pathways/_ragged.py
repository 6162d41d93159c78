"""Has `jax.lax.ragged_all_to_all` run on CPU devices.

XLA's CPU compiler refuses the instruction. So JAX lowers it to collectives that the compiler has: every device gathers
the rows of all devices of its group, and is told by each which of its rows go where. That moves more bytes than are
asked for, in return for programs with mixtures of experts that run as they are on a laptop, embedded and on clusters.
Other platforms keep JAX's own lowering.
"""

from __future__ import annotations

import functools
from typing import Any

from pathways import _private


@functools.cache
def install() -> None:
    """Registers the lowering with JAX, once."""
    _private.lower("ragged_all_to_all_p", "cpu", _exchange)


def _exchange(
    operand: Any,
    output: Any,
    input_offsets: Any,
    send_sizes: Any,
    output_offsets: Any,
    recv_sizes: Any,
    *,
    axis_name: Any,
    axis_index_groups: Any,
) -> Any:
    """Returns output with the rows that the group's devices send to this one.

    Of rows to which several updates write, the last one in the order of senders stays.
    """
    import jax.numpy as jnp
    from jax import lax

    del recv_sizes  # what is sent says it, too
    told = functools.partial(
        lax.all_to_all,
        axis_name=axis_name,
        split_axis=0,
        concat_axis=0,
        axis_index_groups=axis_index_groups,
        tiled=True,
    )
    first, size, to = told(input_offsets), told(send_sizes), told(output_offsets)  # by sender, then by update
    rows = lax.all_gather(operand, axis_name, axis_index_groups=axis_index_groups, axis=0, tiled=False)
    senders, length = rows.shape[:2]
    if length == 0 or output.shape[0] == 0:
        return output
    updates = first.shape[0]
    sender = jnp.arange(updates) // (updates // senders)
    row = jnp.arange(output.shape[0], dtype=to.dtype)[:, None]
    written = (row >= to) & (row < to + size)
    last = jnp.max(jnp.where(written, jnp.arange(updates), -1), axis=1)
    update = jnp.maximum(last, 0)
    source = jnp.clip(row[:, 0] - to[update] + first[update], 0, length - 1)
    got = rows.reshape(senders * length, *rows.shape[2:])[sender[update] * length + source]
    is_written = (last >= 0).reshape(-1, *[1] * (output.ndim - 1))
    return jnp.where(is_written, got, output)
