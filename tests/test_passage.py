"""Arrays as the library takes them from JAX, reshards them and gives them back: what does not fit is refused."""

import ctypes

import jax
import numpy as np
import pathways
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from pathways import _passage, _reshard
from waiting import comes

pytestmark = pytest.mark.newest


@pytest.mark.sizes
def test_arrays_that_do_not_fit_are_refused(devices):
    refused = (RuntimeError, ValueError)  # JAX makes of it now one, now the other
    library = _reshard._library()
    number = (ctypes.c_uint64 * 1)()
    rows, columns = (
        NamedSharding(Mesh(np.array(on), "a"), spec) for on, spec in ((devices, P("a")), (devices[4:], P(None, "a")))
    )
    give = _passage.importing((_passage.Array((8, 8), np.dtype("float32"), False, columns),))
    x = jax.device_put(np.arange(64, dtype=np.float32).reshape(8, 8), rows)
    take = _passage.exporting((_passage.array_of(x),))
    plan = _reshard._Plan(x.shape, rows, columns)

    with pytest.raises(refused, match="FAILED_PRECONDITION: .*must name 1 arrays"):
        give()
    take(x)
    assert library.pathways_exported(number, 0) == 1  # there was no room for it
    assert library.pathways_exported(number, 1) == 0
    take(x)
    assert library.pathways_exported(number, 1) == 1
    exported = number[0]
    library.pathways_import(number, 1)
    with pytest.raises(refused, match="INVALID_ARGUMENT: .*4 shards of this client that is not imported yet"):
        give()  # the client has it
    with pytest.raises(pathways.PathwaysError, match="NOT_FOUND: .*was released or imported"):
        _reshard._native.check(library.pathways_reshard(exported, plan.number, number))

    def resharded(y, plan):
        _passage.exporting((_passage.array_of(y),))(y)
        assert library.pathways_exported(number, 1) == 1
        held = number[0]
        try:
            _reshard._native.check(library.pathways_reshard(held, plan.number, number))
        finally:
            library.pathways_release((ctypes.c_uint64 * 1)(held), 1)
        return number[0]

    wide = jax.device_put(np.ones((8, 16), np.float32), rows)
    with pytest.raises(pathways.PathwaysError, match="INVALID_ARGUMENT: .*the plan is for"):
        resharded(wide, plan)
    resharded(wide, _reshard._Plan(wide.shape, rows, columns))
    library.pathways_import(number, 1)
    with pytest.raises(refused, match=r"is f32\[8,2\] on device .* has f32\[8,4\]"):
        give()
    resharded(x, plan)
    library.pathways_import(number, 1)
    np.testing.assert_array_equal(give()[0], x)
    resharded(x, plan)
    library.pathways_release(number, 1)
    library.pathways_release(number, 1)  # of nothing
    assert comes(lambda: "exported" not in pathways.stats()["live"]), pathways.stats()["live"]
