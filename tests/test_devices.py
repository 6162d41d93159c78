"""Properties of devices: the same whether they are this process's or a cluster's."""

import jax
import pytest

pytestmark = [pytest.mark.sizes, pytest.mark.versions]


def test_devices_read_as_stock_jax_writes_them(devices):
    for index, device in enumerate(devices):
        assert repr(device) == f"CpuDevice(id={index})"
        assert str(device) == f"cpu:{index}"


def test_memories_read_as_stock_jax_writes_them(devices):
    (stock, *_) = jax.devices("cpu")
    names = [(m.kind, repr(m), str(m)) for m in stock.addressable_memories()]
    assert len(names) > 1
    for index, device in enumerate(devices):
        expected = [
            (kind, debug.replace(f"_{k}", f"_{number}"), text.replace(f"(id={k},", f"(id={number},"))
            for k, (kind, debug, text) in enumerate(names)
            for number in [index * len(names) + k]
        ]
        assert [(m.kind, repr(m), str(m)) for m in device.addressable_memories()] == expected
        assert device.default_memory().kind == stock.default_memory().kind


def test_devices_tell_where_they_are(devices):
    """Checks what JAX programs group devices by. The last two are of the one process that jaxlib knows."""
    assert {device.slice_index for device in devices} == {0}
    workers = [getattr(device, "worker", None) for device in devices]
    assert [device.virtual_task_index for device in devices] == [list(dict.fromkeys(workers)).index(w) for w in workers]
    assert {(device.process_index, device.task_id) for device in devices} == {(0, 0)}


def test_a_worker_has_one_name(devices):
    if not hasattr(devices[0], "worker"):
        return  # a device of this process has no worker
    assert all(device.worker and not device.worker.isdigit() for device in devices)
    by_worker = {}
    for device in jax.devices():
        by_worker.setdefault(device.worker, []).append(device.local_index)
    assert all(indices == list(range(len(indices))) for indices in by_worker.values())
