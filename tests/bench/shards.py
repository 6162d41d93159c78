"""What a shard costs a client: the time until a call on n devices returns, of a tiny jitted function, and of the same
computation through openpathways.h, where our PJRT frontend is called without JAX. The devices are the CPU plugin's,
behind the whole control plane in this process; they run what they are given while nothing is timed.

    python tests/bench/shards.py 1 8 64 512

Prints a line of JSON: {"together": µs a call by number of devices, "pjrt": the same without JAX}.
"""

import ctypes
import json
import sys
import time
from ctypes import POINTER, byref, c_char_p, c_int32, c_int64, c_size_t, c_uint64, c_void_p

import jax
import numpy as np
import pathways
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

CALLS = 8  # between waits; within what a session may have under way
ROUNDS = 50
F32 = 11
ADD = b"""module @add {
  func.func public @main(%x: tensor<1xf32>) -> tensor<1xf32> {
    %one = stablehlo.constant dense<1.0> : tensor<1xf32>
    %y = stablehlo.add %x, %one : tensor<1xf32>
    return %y : tensor<1xf32>
  }
}"""


class Options(ctypes.Structure):
    """Options of openpathways.h, which begin with their size; those that are not given are zero."""

    def __init__(self, **given):
        super().__init__(struct_size=ctypes.sizeof(self), **given)


class SessionOptions(Options):
    _fields_ = (("struct_size", c_size_t), ("address", c_char_p), ("devices", c_int32), ("memory_limit", c_int64))


class CompileOptions(Options):
    _fields_ = (
        ("struct_size", c_size_t),
        ("code", c_char_p),
        ("code_size", c_size_t),
        ("devices", POINTER(c_int32)),
        ("num_devices", c_size_t),
        ("num_replicas", c_int32),
        ("num_partitions", c_int32),
        ("shardy", c_int32),
        ("outputs", c_void_p),
        ("num_outputs", c_size_t),
        ("xla_options", c_void_p),
        ("xla_options_size", c_size_t),
    )


class HostOptions(Options):
    _fields_ = (
        ("struct_size", c_size_t),
        ("data", c_void_p),
        ("type", ctypes.c_int),
        ("mode", ctypes.c_int),
        ("num_dims", c_size_t),
        ("dims", POINTER(c_int64)),
        ("byte_strides", POINTER(c_int64)),
        ("tiles_num_dims", c_size_t),
        ("tiles", POINTER(c_int64)),
        ("devices", POINTER(c_int32)),
        ("num_devices", c_size_t),
        ("released", c_void_p),
        ("released_arg", c_void_p),
    )


class Frontend:
    """A session of openpathways.h, of which each array is a number."""

    def __init__(self, address):
        self.library = ctypes.CDLL(str(pathways._native.library_path()))
        for name in ("session_open", "compile", "array_from_host", "array_ready", "future_wait", "run", "drop"):
            getattr(self.library, f"pathways_{name}").restype = c_uint64
        self.library.pathways_error_message.restype = c_char_p
        self.session = self.make("session_open", SessionOptions(address=address.encode()))

    def calls(self, name, *arguments):
        if error := getattr(self.library, f"pathways_{name}")(*arguments):
            raise RuntimeError(self.library.pathways_error_message(c_uint64(error)).decode())

    def make(self, name, *arguments):
        handle = c_uint64()
        self.calls(name, *(byref(a) if isinstance(a, Options) else a for a in arguments), byref(handle))
        return handle

    def returns(self, n):
        devices = (c_int32 * n)(*range(n))
        options = CompileOptions(code=ADD, code_size=len(ADD), devices=devices, num_devices=n, num_replicas=n)
        f = self.make("compile", self.session, options)
        zero, dims = np.zeros(1, np.float32), (c_int64 * 1)(1)
        host = HostOptions(data=zero.ctypes.data, type=F32, num_dims=1, dims=dims, devices=devices, num_devices=n)
        x = self.make("array_from_host", self.session, host)
        run, drop, one, none = self.library.pathways_run, self.library.pathways_drop, c_size_t(1), None

        def call(a):
            b = c_uint64()
            if run(f, none, byref(a), one, byref(b), one, none):
                raise RuntimeError("pathways_run failed")
            if a is not x:
                drop(a)
            return b

        def wait(a):
            future = self.make("array_ready", a)
            self.calls("future_wait", future, c_int64(-1))
            drop(future)
            if a is not x:
                drop(a)

        took = least(call, x, wait)
        for handle in (x, f):
            self.calls("drop", handle)
        return took


def least(call, x, wait):
    """The seconds until a call returns: the least of some rounds' means."""
    wait(call(x))
    took = []
    for _ in range(ROUNDS):
        y = x
        begin = time.perf_counter()
        for _ in range(CALLS):
            y = call(y)
        took.append((time.perf_counter() - begin) / CALLS)
        wait(y)
    return min(took)


def returns(devices):
    sharding = NamedSharding(Mesh(np.array(devices), ("d",)), P("d"))
    x = jax.device_put(np.zeros(len(devices), np.float32), sharding)
    return least(jax.jit(lambda x: x + 1), x, jax.block_until_ready)


def main():
    sizes = [int(n) for n in sys.argv[1:]]
    address = f"local:1x{max(sizes)}"
    pathways.init(address=address)
    devices = jax.devices()
    together = {n: 1e6 * returns(devices[:n]) for n in sizes}
    pjrt = Frontend(address)
    print(json.dumps({"together": together, "pjrt": {n: 1e6 * pjrt.returns(n) for n in sizes}}))
    pjrt.calls("drop", pjrt.session)


if __name__ == "__main__":
    main()
