"""MPMD: one function, whose parts run on different meshes, partitioned by Shardy's passes in jaxlib.

    from pathways import mpmd

    def train(params, batches): ...                    # mpmd.named_computation(block, name="block_0")(w, x)
    config = mpmd.make_config({"m0": mesh0, "m1": mesh1}, {"block_0": "m0", "block_1": "m1"})
    step = mpmd.jit(train, config).lower(*args).compile()

The words are those of OpenXLA's own front end, which is not needed; `shardy()` runs programs of that, too.
"""

from pathways.mpmd._compiled import Compiled
from pathways.mpmd._config import SCHEDULES, Config, make_config
from pathways.mpmd._jit import FunctionNamedShardings, Jitted, Lowered, jit
from pathways.mpmd._shardy import shardy
from pathways.mpmd._words import broadcast, call, named_computation, named_tensor, reduce

__all__ = [
    "SCHEDULES",
    "Compiled",
    "Config",
    "FunctionNamedShardings",
    "Jitted",
    "Lowered",
    "broadcast",
    "call",
    "jit",
    "make_config",
    "named_computation",
    "named_tensor",
    "reduce",
    "shardy",
]
