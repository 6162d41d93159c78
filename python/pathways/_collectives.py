"""What takes the place of collectives in programs that XLA's CPU compiler would refuse.

Each function builds, where the operation is, what makes the same result of collectives that the compiler has, in the
operation's groups of devices and on its channel. None asks which device it runs on (partition_id), which XLA refuses
where a shard_map leaves some axes of its mesh to XLA.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

_BETWEEN_DEVICES = 1  # the type of a channel


def _tensor(shape: Sequence[int], element: ir.Type) -> Any:
    return ir.RankedTensorType.get(shape, element)


def _fill(tensor: Any, value: int) -> ir.Value:
    return stablehlo.constant(ir.DenseElementsAttr.get_splat(tensor, ir.IntegerAttr.get(tensor.element_type, value)))


def _compare(a: ir.Value, direction: str, b: ir.Value) -> ir.Value:
    return stablehlo.compare(a, b, stablehlo.ComparisonDirectionAttr.get(direction))


def ragged_all_to_all(op: Any) -> ir.Value:
    """Has every device gather the rows of its group, and be told by each which of its rows go where.

    That moves more bytes than are asked for.
    """
    operand, output, *lists, _ = op.operands  # what is received is also said by what is sent
    (length, *row), height, (updates,) = operand.type.shape, output.type.shape[0], lists[0].type.shape
    if length == 0 or height == 0:
        return output
    config = op.attributes["backend_config"]
    where = {"replica_groups": config["replica_groups"]}
    if "channel_id" in config:
        where["channel_handle"] = stablehlo.ChannelHandle.get(config["channel_id"].value, _BETWEEN_DEVICES)
    senders = where["replica_groups"].type.shape[1]

    everyone = _tensor([senders * length, *row], operand.type.element_type)
    rows = stablehlo.all_gather([everyone], [operand], 0, use_global_device_ids="channel_handle" in where, **where)
    i64 = ir.IntegerType.get_signless(64)
    all_64 = [stablehlo.convert(_tensor([updates], i64), numbers) for numbers in lists]
    lines = [stablehlo.reshape(_tensor([1, updates], i64), numbers) for numbers in all_64]
    told = stablehlo.all_to_all([stablehlo.concatenate(lines, 0)], 1, 1, senders, **where)

    source = _sources(told, senders, length, height)
    by_row = stablehlo.GatherDimensionNumbers.get(
        offset_dims=[*range(1, 1 + len(row))], collapsed_slice_dims=[0], operand_batching_dims=[],
        start_indices_batching_dims=[], start_index_map=[0], index_vector_dim=1,
    )  # fmt: skip
    came = stablehlo.gather(rows, source, by_row, [1, *row])
    bits = _tensor(output.type.shape, ir.IntegerType.get_signless(1))
    is_written = stablehlo.broadcast_in_dim(bits, _compare(source, "GE", _fill(source.type, 0)), [0])
    return stablehlo.select(is_written, came, output)


def _sources(told: ir.Value, senders: int, length: int, height: int) -> ir.Value:
    """Returns from which row of all senders' rows each row of the output comes, or -1.

    Of several updates that write a row, the last one in the order of senders counts. told has a line each of where
    updates begin at the sender, of their sizes, and of where they begin in the output.
    """
    updates, i64 = told.type.shape[1], told.type.element_type
    one, column, table = _tensor([], i64), _tensor([height], i64), _tensor([height, updates], i64)
    first, size, to = (
        stablehlo.broadcast_in_dim(table, stablehlo.slice(told, [i, 0], [i + 1, updates], [1, 1]), [0, 1])
        for i in range(3)
    )
    at = stablehlo.subtract(stablehlo.iota(table, 0), to)  # the row's place in the update
    is_written = stablehlo.and_(_compare(at, "GE", _fill(table, 0)), _compare(at, "LT", size))
    row = stablehlo.clamp(_fill(one, 0), stablehlo.add(first, at), _fill(one, length - 1))
    # The update's number times that of all rows, plus the source: the largest is the last update's.
    update = np.arange(updates)
    key = ir.DenseElementsAttr.get(update * senders * length + update // (updates // senders) * length)
    keys = stablehlo.add(row, stablehlo.broadcast_in_dim(table, stablehlo.constant(key), [1]))
    last = stablehlo.ReduceOp([column], [stablehlo.select(is_written, keys, _fill(table, -1))], [_fill(one, -1)], [1])
    block = last.regions[0].blocks.append(one, one)
    with ir.InsertionPoint(block):
        stablehlo.return_([stablehlo.maximum(*block.arguments)])
    return stablehlo.remainder(last.result, _fill(column, senders * length))  # of -1 itself


_SMALL = 64 << 10  # bytes up to which a sum takes less than a tree, whose rounds follow each other


def collective_broadcast(op: Any) -> ir.Value:
    """Adds up what the source has and the zeros of all others, or sends a large array along a tree."""
    groups, x = op.attributes["replica_groups"], op.operands[0]
    if groups.type.shape[1] < 2:
        return x
    channel = {"channel_handle": op.attributes["channel_handle"]} if "channel_handle" in op.attributes else {}
    element = x.type.element_type
    width = 2 * element.element_type.width if isinstance(element, ir.ComplexType) else element.width
    # XLA's CPU compiler would widen floats of 16 bits in a tree.
    sums = width == 16 or np.prod(x.type.shape) * width <= 8 * _SMALL
    return (_sum if sums else _tree)(x, groups, channel)


def _sum(x: ir.Value, groups: Any, channel: dict[str, Any]) -> ir.Value:
    # A permute from the sources to themselves, which sends nothing, tells each device whether it is one.
    sources = ir.DenseIntElementsAttr.get(np.repeat(np.array(groups)[:, :1], 2, axis=1))
    one = _fill(_tensor([], ir.IntegerType.get_unsigned(8)), 1)
    is_source = _compare(stablehlo.collective_permute(one, sources, **channel), "EQ", one)

    def add(x: ir.Value) -> ir.Value:
        whole, width = x.type, x.type.element_type.width
        # As whole numbers, so that -0.0 keeps its sign, and a NaN its bits.
        bits = whole if width == 1 else _tensor(whole.shape, ir.IntegerType.get_unsigned(width))
        added = bits if width >= 8 else _tensor(whole.shape, ir.IntegerType.get_unsigned(8))
        x = stablehlo.convert(added, x if bits == whole else stablehlo.bitcast_convert(bits, x))
        x = stablehlo.select(is_source, x, _fill(added, 0))
        op = stablehlo.AllReduceOp([added], [x], groups, use_global_device_ids=bool(channel), **channel)
        one = _tensor([], added.element_type)
        block = op.regions[0].blocks.append(one, one)
        with ir.InsertionPoint(block):
            stablehlo.return_([stablehlo.add(*block.arguments)])
        x = stablehlo.convert(bits, op.results[0])
        return x if bits == whole else stablehlo.bitcast_convert(whole, x)

    if isinstance(x.type.element_type, ir.ComplexType):
        return stablehlo.complex(add(stablehlo.real(x)), add(stablehlo.imag(x)))
    return add(x)


def _tree(x: ir.Value, groups: Any, channel: dict[str, Any]) -> ir.Value:
    """Makes a tree of permutes: in each round, every device that has the array sends it to one that does not."""
    count, i64 = groups.type.shape[1], ir.IntegerType.get_signless(64)
    # Each device is told its place in its group, by all. The source has the first one.
    one = _tensor([], i64)
    places = stablehlo.all_to_all([stablehlo.iota(_tensor([count], i64), 0)], 0, 0, count, groups, **channel)
    place = stablehlo.reshape(one, stablehlo.slice(places, [0], [1], [1]))
    have = 1
    while have < count:
        pairs = [(group[i], group[i + have]) for group in np.array(groups) for i in range(min(have, count - have))]
        came = stablehlo.collective_permute(x, ir.DenseIntElementsAttr.get(np.array(pairs)), **channel)
        x = stablehlo.select(_compare(place, "LT", _fill(one, have)), x, came)
        have *= 2
    return x
