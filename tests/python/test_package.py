"""The package by itself: what import, init and shutdown say, above all when something is wrong."""

import errno
import json
import pickle
import re
import textwrap
from pathlib import Path

import fresh
import jax
import numpy as np
import pathways
import pytest
from pathways import _graph, _settings

# Each backend of a script of its own; "bare" has what a person's shell would have.
BARE = {"PATHWAYS_DEVICES": "", "PATHWAYS_ADDRESS": ""}


def script(code, env=None, check=True, imports=False):
    """Runs code that imports pathways itself, in an environment that says nothing but env; see fresh.run on imports."""
    return fresh.run(code, backend=None, env=BARE | (env or {}), check=check, imports=imports)


def error_of(call):
    """Code that prints the PathwaysError of a call."""
    return f"try:\n    {call}\nexcept pathways.PathwaysError as error:\n    print(error.code, '|', error.message)\n"


# --- settings ---


@pytest.mark.parametrize("given", [0, -1, 4097, 10**9, 8.0, "8", True, [8]])
def test_a_wrong_number_of_devices_is_refused(given):
    with pytest.raises(pathways.PathwaysError) as caught:
        pathways.init(devices=given)
    assert caught.value.code == "INVALID_ARGUMENT"
    assert caught.value.message == f"devices is {given!r}; expected a whole number of devices from 1 to 4096"
    assert len(jax.devices()) == 8


@pytest.mark.parametrize("given", ["0", "-3", "many", "1e3", "8.0", "4097"])
def test_a_wrong_number_in_the_environment_is_refused(given, monkeypatch):
    monkeypatch.delenv("PATHWAYS_ADDRESS", raising=False)
    monkeypatch.setenv("PATHWAYS_DEVICES", given)
    with pytest.raises(pathways.PathwaysError, match="^INVALID_ARGUMENT: PATHWAYS_DEVICES is ") as caught:
        _settings.Settings().with_environment()
    assert re.search(f"is '?{re.escape(given)}'?; expected a whole number .* 1 to 4096", caught.value.message)


def test_a_wrong_number_in_the_environment_is_named_by_every_first_use():
    done = script(
        "import pathways\n"
        + error_of("pathways.init()")
        + error_of("pathways.devices()")
        + "import jax\ntry:\n    jax.devices()\nexcept RuntimeError as error:\n    print('jax', '|', error)\n",
        env={"PATHWAYS_DEVICES": "many"},
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    for line in lines:
        assert "PATHWAYS_DEVICES is 'many'; expected a whole number of devices from 1 to 4096" in line
    assert lines[0].startswith("INVALID_ARGUMENT | ") and lines[1].startswith("INVALID_ARGUMENT | ")


def test_an_unknown_option_is_named_with_those_there_are():
    with pytest.raises(pathways.PathwaysError) as caught:
        pathways.init(device=8, hosts=2)
    assert caught.value.code == "INVALID_ARGUMENT"
    assert caught.value.message == (
        "pathways.init() has no option 'device', 'hosts'; its options are address, devices, elastic, memory_limit, "
        "memory_wait, platform, wait"
    )


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"elastic": True}, "elastic=True needs devices="),
        ({"elastic": 1, "devices": 8}, "elastic is 1; expected True or False"),
        ({"elastic": True, "devices": 8}, "elastic is for clusters"),
        ({"platform": 3}, "platform is 3; expected a name"),
        ({"platform": "cpu"}, "platform is for clusters"),
    ],
)
def test_what_only_clusters_have_is_refused_without_one(asked, why):
    with pytest.raises(pathways.PathwaysError, match=why) as caught:
        pathways.init(**asked)
    assert caught.value.code == "INVALID_ARGUMENT"


def test_an_address_is_never_ignored():
    with pytest.raises(pathways.PathwaysError, match="comes too late: JAX already runs") as caught:
        pathways.init("tcp:host:1234")
    assert caught.value.code == "FAILED_PRECONDITION"
    done = script(
        "import pathways\n" + error_of("pathways.devices()"),
        env={"PATHWAYS_ADDRESS": "host:1", "PATHWAYS_DEVICES": "2"},
    )
    assert done.stdout.startswith(
        "INVALID_ARGUMENT | PATHWAYS_ADDRESS is 'host:1', which is not the address of a cluster"
    )


def test_what_a_cluster_decides_is_not_ignored():
    done = script("import pathways\n" + error_of("pathways.init('unix:/none', memory_limit=4)"))
    assert done.stdout.startswith("INVALID_ARGUMENT | ") and "--memory-limit" in done.stdout


@pytest.mark.parametrize("given", ["soon", "", "1.2.3", "5 minutes", -1, True, [1], 1e12, float("nan")])
def test_a_wrong_wait_is_refused(given):
    with pytest.raises(pathways.PathwaysError, match="^INVALID_ARGUMENT: wait is ") as caught:
        pathways.init(wait=given)
    assert f"{given!r}; expected seconds" in caught.value.message


def test_a_wait_is_read_as_the_command_line_reads_it():
    read = {"0": 0, "90": 90, "1m30s": 90, "1.5h": 5400, "250ms": 0.25, 2: 2, 0.5: 0.5}
    assert {text: _settings._seconds(text, "wait") for text in read} == read


def test_bytes_are_read_as_the_command_line_reads_them():
    read = {"500": 500, "4GiB": 4 << 30, "1.5 KB": 1500, "2TiB": 2 << 40, "7B": 7, 12: 12}
    assert {text: _settings.parse_bytes(text, "memory_limit") for text in read} == read


@pytest.mark.parametrize("given", ["", "GiB", "4G", "4gib", "-1", "1e9", "0", "0.2B", "9999999TiB", 0, 1.5, True, [4]])
def test_wrong_bytes_are_refused(given):
    with pytest.raises(pathways.PathwaysError, match="^INVALID_ARGUMENT: memory_limit is ") as caught:
        pathways.init(memory_limit=given)
    assert f"{given!r}; expected bytes per device, such as" in caught.value.message


WRONG_ADDRESSES = ["", "  ", 80, b"host:1", "foo", "tcp:", "/run/controller.sock", "grpc:host:1", "local:2x2049"]
WRONG_ADDRESSES += ["tcp:foo", "tcp::80", "tcp:host:", "tcp:host:0", "tcp:host:70000", "tcp:::1:80", "tcp:host:http"]
WRONG_ADDRESSES += ["unix:", "local:", "local:0x4", "local:4x0", "local:2x", "local:x4", "local:2x-1", "sim:2x2x2"]


@pytest.mark.parametrize("given", WRONG_ADDRESSES)
def test_a_wrong_address_is_refused(given):
    with pytest.raises(pathways.PathwaysError, match="^INVALID_ARGUMENT: address is ") as caught:
        pathways.init(given)
    assert repr(given) in caught.value.message


@pytest.mark.parametrize("text", ["tcp:host:8476", "tcp:[::1]:80", "unix:@a", "unix:/a b", "local:4", "sim:64x64"])
def test_a_right_address_is_taken(text):
    assert _settings._address(f" {text} ", "address") == text


@pytest.mark.embedded("sets the number of this process's devices")
def test_init_again_with_the_same_settings_does_nothing_and_with_others_says_what_to_do():
    before = jax.devices()
    pathways.init()
    pathways.init(devices=8)
    pathways.init(None, devices=np.int64(8))
    with pytest.raises(pathways.PathwaysError) as caught:
        pathways.init(devices=4)
    assert caught.value.code == "FAILED_PRECONDITION"
    assert "devices=4" in caught.value.message and "already runs on 8" in caught.value.message
    assert "pathways.shutdown()" in caught.value.message
    assert jax.devices() == before


def test_errors_keep_their_code_when_pickled():
    error = pickle.loads(pickle.dumps(pathways.PathwaysError("NOT_FOUND", "no such thing")))
    assert (error.code, error.message, str(error)) == ("NOT_FOUND", "no such thing", "NOT_FOUND: no such thing")
    assert isinstance(error, RuntimeError)


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("NOT_FOUND: no: such thing", "NOT_FOUND", "no: such thing"),
        ("a sentence: with a colon", "UNKNOWN", "a sentence: with a colon"),
        ("", "UNKNOWN", ""),
    ],
)
def test_a_text_of_the_library_becomes_an_error(text, code, message):
    error = pathways.PathwaysError.parse(text)
    assert (error.code, error.message) == (code, message)


# --- the number of devices ---


@pytest.mark.parametrize(
    ("env", "code", "count"),
    [
        ({}, "", 1),
        ({"XLA_FLAGS": "--xla_force_host_platform_device_count=3"}, "", 3),
        ({}, "jax.config.update('jax_num_cpu_devices', 5)", 5),
        ({"XLA_FLAGS": "--xla_force_host_platform_device_count=3"}, "pathways.init(devices=2)", 2),
        ({"PATHWAYS_DEVICES": " 6 "}, "", 6),
        ({"PATHWAYS_DEVICES": "6"}, "pathways.init(devices=2)", 2),
        ({"PATHWAYS_DEVICES": "6"}, "pathways.init(devices=2)\npathways.init(devices=7)\npathways.init()", 7),
    ],
)
def test_init_or_the_environment_sets_the_number_of_devices(env, code, count):
    done = script(f"import pathways, jax\n{code}\nprint(len(jax.devices()), len(pathways.devices()))", env=env)
    assert done.stdout.split() == [str(count)] * 2


# --- how the backend becomes JAX's own ---


@pytest.mark.versions
def test_import_is_quiet_and_makes_the_backend_the_default():
    done = script(
        """
        import logging, warnings
        logging.basicConfig(level=logging.WARNING)
        warnings.simplefilter("error")
        import pathways, jax
        print(jax.default_backend(), jax.devices() == pathways.devices(), jax.config.jax_platforms)
        print(jax.devices("cpu")[0].client is not jax.devices()[0].client)
        """,
        imports=True,
    )
    assert done.stdout.splitlines() == ["cpu True pathways,cpu", "True"]
    assert done.stderr == ""


@pytest.mark.versions
def test_import_after_the_first_use_of_jax_says_so():
    done = script(
        "import jax\njax.devices()\ntry:\n    import pathways\nexcept RuntimeError as error:\n    print(error)\n"
        "print(jax.numpy.arange(3).sum())"
    )
    said, result = done.stdout.splitlines()
    assert said.startswith("FAILED_PRECONDITION: JAX has already made its devices, so Pathways came too late")
    assert "put `import pathways` before the first call that uses a device" in said
    assert result == "3"


@pytest.mark.versions
@pytest.mark.parametrize("platforms", ["pathways", "pathways,cpu", " pathways , cpu"])
def test_jax_platforms_may_name_the_backend(platforms):
    done = script(
        "import pathways, jax\nprint(jax.devices() == pathways.devices(), len(jax.devices('cpu')))",
        env={"JAX_PLATFORMS": platforms},
    )
    assert done.stdout.split() == ["True", "1"]


@pytest.mark.versions
def test_jax_platforms_that_leaves_it_out_wins_with_one_warning():
    done = script(
        "import pathways, jax, jax.extend.backend as backend\npathways.init(devices=3)\n"
        "print(len(jax.devices()), 'pathways' in backend.backends())\n" + error_of("pathways.devices()"),
        env={"JAX_PLATFORMS": "cpu"},
    )
    count, error = done.stdout.splitlines()
    assert count == "1 False"
    assert error.startswith("FAILED_PRECONDITION | JAX runs without Pathways because other platforms were chosen")
    assert done.stderr.count("Warning") == 1
    assert "JAX_PLATFORMS=cpu leaves Pathways out, so JAX runs without it; unset it, or set" in done.stderr
    assert "<string>:" in done.stderr  # the warning points at the user's line


@pytest.mark.parametrize(
    ("env", "count", "registered"),
    [
        ({}, 1, False),
        ({"JAX_PLATFORMS": "cpu"}, 1, False),
        ({"JAX_PLATFORMS": "cpu", "PATHWAYS_DEVICES": "3"}, 1, False),
        ({"PATHWAYS_DEVICES": "3"}, 3, True),
        ({"JAX_PLATFORMS": "pathways"}, 1, True),
        ({"JAX_PLATFORMS": "pathways,cpu", "PATHWAYS_DEVICES": "2"}, 2, True),
    ],
)
@pytest.mark.versions
def test_found_without_an_import_it_registers_only_when_asked(env, count, registered):
    done = script(
        """
        import sys, warnings
        warnings.simplefilter("error")
        import jax, jax.extend.backend
        print(len(jax.devices()), "pathways" in jax.extend.backend.backends(), "pathways" in sys.modules)
        """,
        env=env,
    )
    assert done.stdout.split() == [str(count), str(registered), str(registered)]
    assert done.stderr == ""


@pytest.mark.parametrize(
    "env", [{"PATHWAYS_DEVICES": "3"}, {"JAX_PLATFORMS": "pathways"}, {"JAX_PLATFORMS": "pathways,cpu"}]
)
@pytest.mark.versions
def test_found_without_an_import_it_leaves_jax_platforms_as_it_was(env):
    done = script(
        """
        import jax, jax.extend.backend
        before = jax.config.jax_platforms
        print(len(jax.devices()) == 3, jax.config.jax_platforms == before)
        jax.jit(lambda x: jax.pure_callback(lambda y: y + 1, x, x))(1.0).block_until_ready()
        print(sorted(jax.extend.backend.backends()), jax.devices("cpu")[0].client is not jax.devices()[0].client)
        """,
        env={"PATHWAYS_DEVICES": "3", **env},
    )
    assert done.stdout.splitlines() == ["True True", "['cpu', 'pathways'] True"]
    assert done.stderr == ""


@pytest.mark.versions
def test_found_without_an_import_it_never_gives_way_to_another_backend():
    code = """
        import jax
        for _ in range(3):
            try:
                print(jax.devices())
            except RuntimeError as error:
                print(error)
        """
    done = script(code, env={"PATHWAYS_ADDRESS": "unix:/nowhere/controller.sock"})
    assert len(done.stdout.splitlines()) == 3
    assert all("/nowhere/controller.sock" in line for line in done.stdout.splitlines())


def test_one_thread_of_the_runtime_alone_may_sleep_longer():
    # Its monitor, see capi/lib/monitor.c; never a thread of the program, nor one that it starts.
    code = """
        import ctypes, os, threading

        slack = lambda: ctypes.CDLL(None).prctl(30, 0, 0, 0, 0)  # PR_GET_TIMERSLACK, in ns
        before = slack()
        import pathways, jax
        jax.block_until_ready(jax.jit(lambda x: x + 1)(0.0))
        after = [slack()]
        thread = threading.Thread(target=lambda: after.append(slack()))
        thread.start()
        thread.join()
        assert after == [before, before], (before, after)
        all = []
        try:
            for thread in os.listdir("/proc/self/task"):
                try:
                    all.append(int(open(f"/proc/{thread}/timerslack_ns").read()))
                except (FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
                    continue
        except PermissionError:  # of other threads only root may ask
            all = [before, before, 5_000_000]
        assert sorted(set(all)) == [before, 5_000_000] and all.count(5_000_000) == 1, all
        print("right")
    """
    assert script(textwrap.dedent(code)).stdout == "right\n"


def test_workers_of_this_process_leave_its_small_blocks_to_malloc():
    # A worker's own process has malloc sort them at once, see device/pjrt/heap.c: Python would be slower by it.
    code = """
        import ctypes
        import pathways, jax

        pathways.init("local:1x2")
        jax.block_until_ready(jax.jit(lambda x: x + 1)(0.0))
        libc = ctypes.CDLL(None)
        if not hasattr(libc, "mallinfo2"):
            print("another malloc")
            raise SystemExit
        fields = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
        Info = type("Info", (ctypes.Structure,), {"_fields_": [(name, ctypes.c_size_t) for name in fields.split()]})
        libc.malloc.restype, libc.free.argtypes, libc.mallinfo2.restype = ctypes.c_void_p, [ctypes.c_void_p], Info
        for block in [libc.malloc(24) for _ in range(200)]:  # more than a thread keeps for itself
            libc.free(block)
        assert libc.mallinfo2().smblks > 0, "no small block is kept"
        print("kept")
    """
    assert script(textwrap.dedent(code)).stdout in ("kept\n", "another malloc\n")


@pytest.mark.versions
def test_import_again_in_the_same_process_registers_once():
    done = script(
        """
        import importlib, sys
        import pathways, jax
        jax.devices()
        importlib.reload(pathways)
        pathways.init()
        print(len(pathways.devices()), jax.devices() == pathways.devices())
        """,
        env={"PATHWAYS_DEVICES": "2"},
    )
    assert done.stdout.split() == ["2", "True"]
    assert done.stderr == ""


# --- what may be missing ---


def test_a_missing_library_is_an_error_and_never_another_backend(tmp_path):
    missing = tmp_path / "none.so"
    done = script(
        "import pathways, jax\n"
        + error_of("pathways.init()")
        + "try:\n    jax.devices()\nexcept RuntimeError as error:\n    print(error)",
        env={"PATHWAYS_LIBRARY": str(missing)},
    )
    ours, of_jax = done.stdout.splitlines()
    assert ours == (
        f"NOT_FOUND | PATHWAYS_LIBRARY names {missing}, and there is no such file; "
        "unset it to use the library of the package"
    )
    assert of_jax.startswith("Unable to initialize backend 'pathways': NOT_FOUND: PATHWAYS_LIBRARY names")


def test_a_file_that_is_no_library_is_an_error(tmp_path):
    text = tmp_path / "text.so"
    text.write_text("not a library")
    done = script("import pathways\n" + error_of("pathways.stats()"), env={"PATHWAYS_LIBRARY": str(text)})
    assert done.stdout.startswith(
        f"FAILED_PRECONDITION | {text} cannot be used as libpathways.so of this Python package"
    )
    assert "pip install --force-reinstall openpathways" in done.stdout


def test_a_library_of_another_kind_is_an_error():
    maps = Path("/proc/self/maps").read_text().splitlines()
    libc = next(line.split()[-1] for line in maps if "/libc.so" in line or "/libc-" in line)
    done = script("import pathways\n" + error_of("pathways.init()"), env={"PATHWAYS_LIBRARY": libc})
    assert done.stdout.startswith(f"FAILED_PRECONDITION | {libc} cannot be used as libpathways.so")


def test_a_missing_plugin_is_named_with_what_to_install(tmp_path):
    gone = tmp_path / "gone.so"
    code = "import pathways\n" + error_of("pathways.devices()")
    done = script(code, env={"PATHWAYS_PLUGIN": str(gone)})
    assert done.stdout.startswith("NOT_FOUND | ") and str(gone) in done.stdout and "PATHWAYS_PLUGIN" in done.stdout


def test_a_broken_plugin_is_named(tmp_path):
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"\x7fELF" + bytes(60))
    done = script("import pathways\n" + error_of("pathways.devices()"), env={"PATHWAYS_PLUGIN": str(broken)})
    code, message = done.stdout.split(" | ", 1)
    assert code in ("FAILED_PRECONDITION", "INVALID_ARGUMENT", "NOT_FOUND")
    assert str(broken) in message


# --- shutdown, stats, trace ---


@pytest.mark.versions
def test_shutdown_and_init_again_with_other_settings():
    done = script(
        """
        import pathways, jax, jax.numpy as jnp
        pathways.shutdown()                      # nothing runs yet
        pathways.init(devices=2)
        first = jnp.arange(4) * 2
        print(len(jax.devices()), first.sum())
        pathways.shutdown()
        pathways.shutdown()
        try:
            jax.devices()
        except RuntimeError as error:
            print("shut down" in str(error), "pathways.init()" in str(error))
        pathways.init(devices=5)
        print(len(jax.devices()), (jnp.arange(4) * 2).sum())
        """,
    )
    assert done.stdout.splitlines() == ["2 12", "True True", "5 12"]


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_wrong_timeout_is_refused(timeout):
    with pytest.raises(pathways.PathwaysError, match="^INVALID_ARGUMENT: timeout is .*; expected a number of seconds"):
        pathways.shutdown(timeout=timeout)


def test_stats_count_what_is_alive():
    live = pathways.stats()["live"]
    assert live and all(isinstance(count, int) and count >= 0 for count in live.values())


@pytest.mark.embedded("a trace shows what runs on this process's devices")
def test_a_trace_is_json_that_names_what_ran(tmp_path):
    path = tmp_path / "trace.json"
    with pathways.trace(path):
        jax.jit(lambda x: x + 1)(np.arange(3)).block_until_ready()
        with pytest.raises(pathways.PathwaysError) as caught, pathways.trace(tmp_path / "second.json"):
            pass
        assert caught.value.code == "FAILED_PRECONDITION"
    trace = json.loads(path.read_text())
    events = trace["traceEvents"] if isinstance(trace, dict) else trace
    assert any(event.get("ph") == "X" for event in events)


def test_a_trace_that_cannot_be_written_names_the_file(tmp_path):
    path = tmp_path / "no such directory" / "trace.json"
    with pytest.raises(pathways.PathwaysError, match="no such directory") as caught, pathways.trace(path):
        pass
    assert caught.value.code == "NOT_FOUND"
    with pytest.raises(pathways.PathwaysError, match="/dev/full") as caught, pathways.trace("/dev/full"):
        pass
    assert caught.value.code == "RESOURCE_EXHAUSTED"


def test_a_picture_that_cannot_be_written_names_the_file(tmp_path):
    path = tmp_path / "full.svg"
    path.symlink_to("/dev/full")
    with pytest.raises(OSError, match=re.escape(str(path))) as caught:
        _graph.write(path, "<svg/>")
    assert caught.value.errno == errno.ENOSPC


def test_the_package_is_typed_and_says_what_it_offers():
    from importlib import resources

    assert resources.files(pathways).joinpath("py.typed").is_file()
    for name in pathways.__all__:
        assert getattr(pathways, name).__doc__ or name == "__version__"


def test_readme_of_the_module_runs():
    code = "\n".join(line for line in pathways.__doc__.splitlines() if line.startswith("    "))
    assert "pathways.init" in code
    done = script(textwrap.dedent(code))
    assert done.stdout.count("CpuDevice") == 8
