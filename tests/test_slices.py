"""Virtual device sets, and arguments that the system moves to the devices of a computation."""

import os
import re
import threading

import fresh
import jax
import jax.numpy as jnp
import numpy as np
import pathways
import pytest
from fresh import run
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from waiting import comes

pytestmark = pytest.mark.sizes


@pytest.fixture
def slices():
    with pathways.make_virtual_device_set() as made:
        yield made


def ids(s) -> list[int]:
    return [device.id for device in s.devices]


def places() -> dict[int, tuple]:
    """Of each device of the process, what it shares with its neighbors in a worker."""
    return {device.id: getattr(device, "worker", None) for device in jax.devices()}


def test_a_slice_is_a_window_of_the_devices(slices, devices):
    s = slices.add_slice(devices=2)
    assert len(s) == 2
    assert all(device in devices for device in s.devices)
    assert s.tpus == s.devices
    assert slices.add_slice(tpu_devices=1).devices[0] not in s.devices
    assert slices.devices == [device for s in slices.slices for device in s.devices]
    assert re.fullmatch(r"<Slice of devices \[\d, \d\]>", repr(s))
    assert repr(slices).startswith("<VirtualDeviceSet of [<Slice of devices [")


def test_slices_keep_out_of_each_others_way(slices, devices):
    granted = [ids(slices.add_slice(devices=2)) for _ in range(4)]
    assert sorted(sum(granted, [])) == list(range(8))
    where = places()
    for pair in granted:
        assert len({where[d] for d in pair}) == 1, "two devices of one worker are there"
    shared = slices.add_slice(devices=8)  # there are no others
    assert sorted(ids(shared)) == list(range(8))


def test_a_notebook_shows_which_devices_slices_have(slices, devices):
    assert slices._repr_svg_() is None
    both = [slices.add_slice(devices=2), slices.add_slice(devices=3)]
    text = slices._repr_svg_()
    assert text.count("<rect") == 1 + 2 * len(devices)
    assert text.count("#0072b2") == 5 and both[0]._repr_svg_().count("#0072b2") == 2


def test_released_devices_are_granted_again(slices):
    first, second = slices.add_slice(devices=4), slices.add_slice(devices=4)
    had = ids(second)
    second.release()
    second.release()
    assert slices.slices == [first]
    assert ids(slices.add_slice(devices=4)) == had
    assert "released" in repr(second)
    with pytest.raises(pathways.PathwaysError, match="was released") as error:
        _ = second.devices
    assert error.value.code == "FAILED_PRECONDITION"
    with pytest.raises(pathways.PathwaysError, match="was released"):
        second.remap()


def test_remap_goes_to_what_fewer_have(slices):
    every = slices.add_slice(devices=8)
    half = slices.add_slice(devices=4)
    crowded = slices.add_slice(devices=8)
    same = ids(half)
    assert half.remap() == {} and ids(half) == same
    other = slices.add_slice(devices=4)  # the other half
    assert set(ids(other)).isdisjoint(same)
    more = slices.add_slice(devices=4)
    shares = half if set(ids(more)) == set(same) else other
    free = other if shares is half else half
    free.release()  # its devices have one fewer now
    changed = more.remap()
    assert set(ids(more)) == {d.id for d in free._devices}
    assert {old.id for old in changed} == set(ids(shares)) and list(changed.values()) == more.devices
    assert len(every) == len(crowded) == 8


def test_a_program_follows_a_remap(slices):
    s = slices.add_slice(devices=2)
    had, captures = ids(s), []

    @pathways.program
    def step(x):
        captures.append(1)
        spread = NamedSharding(Mesh(s.devices, ("d",)), P("d"))
        return jax.jit(lambda v: v * 2)(jax.device_put(x, spread))

    @pathways.program
    def elsewhere(x):
        captures.append(0)
        return x + 1

    free = next(device for device in jax.devices() if device.id not in had)
    x = jax.device_put(np.arange(4, dtype=np.float32), free)
    for _ in range(2):
        assert sorted(d.id for d in step(x).devices()) == sorted(had)
        assert elsewhere(x).devices() == {free}
    crowd = [slices.add_slice(devices=8) for _ in range(2)]
    others = [slices.add_slice(devices=2) for _ in range(4)]  # one of them has what s has
    (same,) = (other for other in others if set(ids(other)) == set(had))
    others.remove(same)
    others[0].release()
    changed = s.remap()
    assert {old.id for old in changed} == set(had) and len(crowd) == 2
    for _ in range(2):
        y = step(x)
        assert sorted(d.id for d in y.devices()) == sorted(ids(s)) != sorted(had)
        assert y.tolist() == [0, 2, 4, 6]
        assert elsewhere(x).tolist() == [1, 2, 3, 4]
    assert sorted(captures) == [0, 1, 1]


def test_a_slices_topology_is_that_of_its_devices(slices, devices):
    s = slices.add_slice(topology=(2, 2))
    assert s.topology == (2, 2) and len(s) == 4
    where = places()
    rows = np.array(ids(s)).reshape(2, 2)
    for a, b in rows:
        assert b == a + 1 and where[a] == where[b]
    mesh = Mesh(np.array(s.devices).reshape(s.topology), ("x", "y"))
    x = jax.device_put(np.arange(16.0).reshape(4, 4), NamedSharding(mesh, P("x", "y")))
    assert float(jnp.sum(x)) == 120


@pytest.mark.parametrize(
    ("wants", "code", "text"),
    [
        ({"devices": 9}, "RESOURCE_EXHAUSTED", "9 devices was asked for, and the session has 8"),
        ({"devices": 2, "topology": (2, 2)}, "INVALID_ARGUMENT", r"\[2 2\] does not have 2 devices"),
        ({"topology": 4}, "INVALID_ARGUMENT", "topology is 4; expected the sizes"),
        ({"devices": 1, "island": "nowhere"}, "INVALID_ARGUMENT", 'no island "nowhere"; there are "default" with 8'),
        ({"devices": 1, "kind": "abacus"}, "INVALID_ARGUMENT", 'kind "abacus"; there are ".*" with 8'),
        ({"devices": 0}, "INVALID_ARGUMENT", "devices is 0"),
        ({"devices": -1}, "INVALID_ARGUMENT", "devices is -1"),
        ({"devices": "two"}, "INVALID_ARGUMENT", "devices is 'two'"),
        ({"devices": 1 << 40}, "INVALID_ARGUMENT", "devices is 1099511627776"),
        ({"devices": 1 << 30}, "RESOURCE_EXHAUSTED", "1073741824 devices"),
        ({"topology": (0, 2)}, "INVALID_ARGUMENT", "a size of the topology is 0"),
        ({}, "INVALID_ARGUMENT", "the number of devices is missing"),
        ({"devices": 1, "tpu_devices": 1}, "INVALID_ARGUMENT", "two names"),
        ({"devices": 1, "wait": -1}, "INVALID_ARGUMENT", "wait is -1"),
        ({"devices": 1, "wait": "long"}, "INVALID_ARGUMENT", "wait is 'long'"),
        ({"devices": 1, "priority": 1.5}, "INVALID_ARGUMENT", "priority is 1.5"),
        ({"devices": 1, "priority": 101}, "INVALID_ARGUMENT", "priority 101; expected -100 to 100"),
    ],
)
def test_slices_that_cannot_be_granted_are_refused(slices, wants, code, text):
    with pytest.raises(pathways.PathwaysError, match=text) as error:
        slices.add_slice(**wants)
    assert error.value.code == code
    assert slices.slices == []
    # Nothing of it was granted: the next slices find all devices free.
    assert sorted(ids(slices.add_slice(devices=4)) + ids(slices.add_slice(devices=4))) == list(range(8))


def test_slices_keep_to_their_constraints(slices, devices):
    s = slices.add_slice(devices=3, island="default", kind=devices[0].device_kind)
    assert len(s) == 3
    assert "island='default'" in repr(s)


def test_a_set_releases_its_slices(devices):
    for _ in range(20):
        with pathways.make_virtual_device_set() as once:
            assert len(set(ids(once.add_slice(devices=4)) + ids(once.add_slice(devices=4)))) == 8
        assert once.slices == [] and once.devices == []
    with pathways.make_virtual_device_set().add_slice(devices=8) as s:
        assert len(s) == 8


def test_exclusive_slices_share_nothing(slices):
    half = slices.add_slice(devices=4, exclusive=True)
    assert half.position == 0 and "exclusive" in repr(half)
    rest = slices.add_slice(devices=4)
    assert set(ids(half)).isdisjoint(ids(rest))
    for wants in ({"devices": 5}, {"devices": 1, "exclusive": True}, {"devices": 5, "wait": 0.05}):
        with pytest.raises(
            pathways.PathwaysError, match=r"1 is in an? (other|exclusive)? ?slice of|another slice"
        ) as error:
            slices.add_slice(**wants)
        assert error.value.code == "RESOURCE_EXHAUSTED", error.value
    assert half.remap() == {}
    half.release()
    assert len(slices.add_slice(devices=5)) == 5


def test_a_slice_waits_for_its_turn(slices):
    every = slices.add_slice(devices=8, exclusive=True)
    first = slices.add_slice(devices=2, exclusive=True, wait=600, block=False)
    urgent = slices.add_slice(devices=7, wait=float("inf"), priority=3, block=False)
    assert comes(lambda: (first.position, urgent.position) == (2, 1))  # the controller tells both
    assert repr(first) == "<Slice of 2 devices, exclusive, number 2 in the queue>" and len(first) == 2
    got = []
    thread = threading.Thread(target=lambda: got.append(urgent.wait().devices))
    thread.start()
    assert "(waits)" in first._repr_svg_()
    every.release()
    thread.join()
    assert len(got[0]) == 7 and urgent.position == 0 and comes(lambda: first.position == 1)
    cancelled = slices.add_slice(devices=8, wait=600, block=False)
    cancelled.release()
    with pytest.raises(pathways.PathwaysError, match="was released"):
        _ = cancelled.position
    urgent.release()
    assert len(first.devices) == 2


# It leads its session, so the terminal that it opens becomes the one whose Ctrl-C it gets.
WAITS_ON_A_TERMINAL = """
import os, sys
os.dup2(os.open(os.environ["TERMINAL"], os.O_RDWR), sys.stderr.fileno())
print("has a terminal")
slices = pathways.make_virtual_device_set()
every = slices.add_slice(devices=8, exclusive=True)
try:
    slices.add_slice(devices=2, wait=600)
except KeyboardInterrupt:
    print("cancelled")
every.release()
print(len(slices.add_slice(devices=8, exclusive=True)))  # nothing of the other request is left
"""


def test_a_terminal_shows_what_a_slice_waits_for_and_its_ctrl_c_cancels_it():
    ours, theirs = os.openpty()
    with open(ours, "r+b", buffering=0) as terminal:
        with open(theirs):
            script = fresh.start(WAITS_ON_A_TERMINAL, env={"TERMINAL": os.ttyname(theirs)})
            assert fresh.hear(script) == "has a terminal"
        shown = terminal.readline().decode()
        terminal.write(b"\3")
        done = fresh.finish(script)
    who = "(other slices of this process|an exclusive slice of session [0-9]+, .+)"
    assert re.fullmatch(f"waiting for <Slice of 2 devices, number 1 in the queue>: 2 are in {who}\r\n", shown), shown
    assert (done.returncode, done.stdout.split()) == (0, ["cancelled", "8"]), done


def test_slices_end_with_their_session():
    out = run(
        """
        import jax
        s = pathways.make_virtual_device_set().add_slice(devices=4)
        s.devices
        pathways.shutdown()
        try:
            s.remap()
        except pathways.PathwaysError as error:
            print(error.code)
        s.release()
        pathways.init()
        t = pathways.make_virtual_device_set().add_slice(devices=8)
        print(len(t), float(jax.device_put(3.0, t.devices[-1])))
        """
    )
    assert out.stdout.split() == ["UNAVAILABLE", "8", "3.0"]


# --- arguments on other devices ---


@pytest.fixture
def three(slices):
    """Fig. 2 of the paper: three functions on slices of two devices each."""
    s1, s2, s3 = (slices.add_slice(devices=2) for _ in range(3))
    assert len(slices.devices) == 6
    a = jax.pmap(lambda x: x * 2.0, devices=s1.devices)
    b = jax.pmap(lambda x: x + 1.0, devices=s2.devices)
    c = jax.pmap(lambda x: x / 2.0, devices=s3.devices)
    return a, b, c


def test_figure_2_without_a_program(three):
    a, b, c = three

    def f(v):
        x = a(v)
        y = b(x)
        z = a(c(x))
        return y, z

    for _ in range(3):  # what the calls before have cached is another way through JAX
        y, z = f(np.array([1.0, 2.0], np.float32))
        np.testing.assert_array_equal(y, [3.0, 5.0])
        np.testing.assert_array_equal(z, [2.0, 4.0])


def test_a_moved_argument_passes_no_host(three):
    a, b, _ = three
    x = a(np.array([1.0, 2.0], np.float32))
    for _ in range(2):  # from the second call on, JAX hands arguments over as they lie
        b(x).block_until_ready()
    before = pathways.stats()
    for _ in range(5):
        y = b(x)
    y.block_until_ready()
    after = pathways.stats()
    assert after["fetches"] == before["fetches"]
    assert after["moved"] == before["moved"] + 5 * 2
    np.testing.assert_array_equal(x, [2.0, 4.0])  # and stays where it is
    assert x.devices() == set(a(np.zeros(2, np.float32)).devices())


def test_what_is_donated_of_a_moved_argument_is_the_copy(slices, three):
    a, _, _ = three
    over = jax.pmap(lambda x, y: x + y, devices=slices.slices[1].devices, donate_argnums=0)
    at_home = jax.pmap(lambda x, y: x + y, devices=slices.slices[0].devices, donate_argnums=0)
    for _ in range(3):
        x = a(np.array([1.0, 2.0], np.float32))
        np.testing.assert_array_equal(over(x, x), [4.0, 8.0])
        assert not x.is_deleted()
        np.testing.assert_array_equal(x, [2.0, 4.0])
        np.testing.assert_array_equal(at_home(x, over(x, x)), [6.0, 12.0])
        assert x.is_deleted()


def test_a_deleted_argument_is_named(three):
    a, b, _ = three
    x = a(np.array([1.0, 2.0], np.float32))
    b(x).block_until_ready()
    x.delete()
    with pytest.raises(Exception, match="deleted"):
        b(x)
