"""Tensors of DLPack between this API in C, JAX, NumPy and PyTorch: values of every dtype, addresses, both kinds."""

import ctypes

import jax
import jax.numpy as jnp
import numpy as np
import pathways
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.embedded("shares the memory of devices")

NUMPYS = ["bool", *(f"{k}{n}" for k in ("int", "uint") for n in (8, 16, 32, 64)), "float16", "float32", "float64"]
NUMPYS += ["complex64", "complex128"]
EIGHTS = [
    f"float8_{kind}" for kind in ("e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")
]
BORROW_OR_FAIL = 2

# Objects of their own: jax.ffi.pycapsule declares those of ctypes.pythonapi in its way.
_python = ctypes.PyDLL(None)
_pointer = _python.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_name = _python.PyCapsule_SetName
_name.argtypes = [ctypes.py_object, ctypes.c_char_p]
_new = _python.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
NAMES = b"dltensor", b"dltensor_versioned"
USED = b"used_dltensor", b"used_dltensor_versioned"


class Options(ctypes.Structure):
    """pathways_host_options."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
        ("type", ctypes.c_int),
        ("mode", ctypes.c_int),
        ("rest", ctypes.c_byte * 72),
    ]


class Session:
    """A session of the C API in this process, beside JAX's."""

    def __init__(self):
        self.library = pathways._native.load()
        self.library.pathways_error_message.restype = ctypes.c_char_p
        for name in ("session_open", "array_from_dlpack", "array_to_dlpack", "drop"):
            getattr(self.library, f"pathways_{name}").restype = ctypes.c_uint64
        self.handle = ctypes.c_uint64()
        options = (ctypes.c_size_t * 4)(32, ctypes.addressof(_EMPTY), 1, 0)
        self.check("session_open", options, ctypes.byref(self.handle))

    def check(self, name, *arguments):
        error = ctypes.c_uint64(getattr(self.library, f"pathways_{name}")(*arguments))
        if error.value:
            text = self.library.pathways_error_message(error).decode()
            self.library.pathways_drop(error)
            raise RuntimeError(text)

    def take(self, capsule, versioned, mode=0):
        array, options = ctypes.c_uint64(), Options(ctypes.sizeof(Options), mode=mode)
        tensor = ctypes.c_void_p(_pointer(capsule, NAMES[versioned]))
        self.check("array_from_dlpack", self.handle, tensor, versioned, ctypes.byref(options), ctypes.byref(array))
        _name(capsule, USED[versioned])
        return array

    def drop(self, handle):
        self.check("drop", handle)

    def show(self, array, versioned):
        tensor = ctypes.c_void_p()
        self.check("array_to_dlpack", array, 0, versioned, ctypes.byref(tensor))
        return Shown(tensor.value, versioned)


_EMPTY = ctypes.create_string_buffer(b"")


class Shown:
    """What `from_dlpack` of the others takes."""

    def __init__(self, tensor, versioned):
        self.tensor, self.versioned = tensor, versioned

    def __dlpack__(self, **_):
        return _new(self.tensor, NAMES[self.versioned], None)

    def __dlpack_device__(self):
        return 1, 0


@pytest.fixture(scope="module")
def session():
    made = Session()
    yield made
    made.drop(made.handle)


def shown_by(x, versioned):
    return x.__dlpack__(max_version=(1, 0)) if versioned else x.__dlpack__()


@pytest.mark.parametrize("versioned", [0, 1])
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3, 4)])
@pytest.mark.parametrize("dtype", NUMPYS)
def test_numpys_arrays_keep_their_values_through_c(session, dtype, shape, versioned):
    x = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    array = session.take(shown_by(x, versioned), versioned)
    back = np.from_dlpack(session.show(array, versioned))
    session.drop(array)
    assert back.dtype == x.dtype and back.shape == x.shape and not back.flags.writeable
    np.testing.assert_array_equal(back, x)


@pytest.mark.parametrize("step", [(1, 2), (-1, 1), (2, -3)])
def test_arrays_with_strides_keep_their_values(session, step):
    x = np.arange(48, dtype=np.int16).reshape(6, 8)[:: step[0], :: step[1]]
    for y in (x, x.T, np.broadcast_to(x[0], (3, *x[0].shape))):
        array = session.take(shown_by(y, 0) if y.flags.writeable else shown_by(y, 1), int(not y.flags.writeable))
        np.testing.assert_array_equal(np.from_dlpack(session.show(array, 0)), y)
        session.drop(array)


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "int32", "uint16", "float16", "bfloat16", "float32", "complex64", *EIGHTS]
)
def test_jax_to_c_and_back_at_one_address(session, dtype):
    x = jnp.arange(64).astype(dtype)
    x.block_until_ready()
    try:
        capsule = x.__dlpack__()
    except (jax.errors.JaxRuntimeError, BufferError) as err:
        assert dtype in EIGHTS, err
        pytest.skip(f"this JAX does not show {dtype} to DLPack: {err}")
    array = session.take(capsule, 0, BORROW_OR_FAIL)
    back = jax.dlpack.from_dlpack(session.show(array, 0))
    assert back.dtype == x.dtype and back.unsafe_buffer_pointer() == x.unsafe_buffer_pointer()
    session.drop(array)
    np.testing.assert_array_equal(np.asarray(back).view(np.uint8), np.asarray(x).view(np.uint8))


class Tensor(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


SIZES = st.sampled_from([-(2**63), -1, 0, 1, 2, 3, 2**31, 2**62, 2**63 - 1])
# A tensor without memory: all that it says of elements is a lie.
NOWHERE = st.fixed_dictionaries(
    {
        "ndim": st.sampled_from([-(2**31), -1, 0, 1, 2, 3, 33, 2**31 - 1]),
        "shape": st.none() | st.lists(SIZES, min_size=3, max_size=3),
        "strides": st.none() | st.lists(SIZES, min_size=3, max_size=3),
        "code": st.integers(0, 16),
        "bits": st.sampled_from([0, 1, 4, 8, 16, 32, 64, 128, 255]),
        "lanes": st.sampled_from([0, 1, 2, 65535]),
        "device_type": st.sampled_from([-1, 0, 1, 1, 1, 2, 3]),
    }
)


@given(NOWHERE, st.sampled_from([0, 1, BORROW_OR_FAIL]))
def test_tensors_that_lie_are_refused(session, said, mode):
    """A tensor without memory is an error, whatever it says of itself, unless it has no elements."""
    three = ctypes.c_int64 * 3
    kept = {name: said[name] and three(*said[name]) for name in ("shape", "strides")}
    tensor = Tensor(None, said["device_type"], 0, said["ndim"], said["code"], said["bits"], said["lanes"])
    for name, values in kept.items():
        if values is not None:
            setattr(tensor, name, ctypes.cast(values, ctypes.POINTER(ctypes.c_int64)))
    array, options = ctypes.c_uint64(), Options(ctypes.sizeof(Options), mode=mode)
    try:
        session.check(
            "array_from_dlpack", session.handle, ctypes.byref(tensor), 0, ctypes.byref(options), ctypes.byref(array)
        )
    except RuntimeError as error:
        assert len(str(error)) > 20
        return
    dims = said["shape"][: said["ndim"]] if said["ndim"] > 0 else []
    assert 0 in dims and min(dims) >= 0 and said["lanes"] == 1, said
    session.drop(array)


def test_pytorchs_tensors_keep_their_values_through_c(session):
    torch = pytest.importorskip("torch")
    for name in (
        "bool",
        "uint8",
        "int8",
        "int16",
        "int32",
        "int64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "complex64",
    ):
        x = torch.arange(24).reshape(4, 6).to(getattr(torch, name))
        array = session.take(x.__dlpack__(), 0)
        back = torch.from_dlpack(session.show(array, 0))
        session.drop(array)
        assert back.dtype == x.dtype and torch.equal(back, x)
