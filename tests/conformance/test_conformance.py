"""The library as a PJRT plugin, judged by pypjrt, a client that knows nothing of JAX, beside the plugin underneath."""

import json
import os
import subprocess
import sys

import fresh
import pathways
import pytest

pytestmark = pytest.mark.versions


def judge(path, out):
    """Runs pypjrt's conformance checks on a plugin and returns check → outcome."""
    done = subprocess.run(
        [sys.executable, "-m", "pypjrt.conform", "--json", str(out), str(path)],
        # A client that is not in Python tells nothing of Python's packages.
        env=fresh.environment(env={"PATHWAYS_PLUGIN": fresh.plugin_path()}),
        capture_output=True,
        text=True,
        timeout=fresh.HANG_SECONDS,
    )
    assert out.exists(), f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("conformance")
    return {
        name: judge(os.path.realpath(path), folder / f"{name}.json")
        for name, path in (("ours", pathways._native.library_path()), ("plugin", fresh.plugin_path()))
    }


def outcomes(report, result):
    return {check["id"] for check in report["checks"] if check["result"] == result}


def test_nothing_fails(reports):
    results = {check["result"] for check in reports["ours"]["checks"]}
    assert results <= {"pass", "unsupported", "skip"}, [
        check for check in reports["ours"]["checks"] if check["result"] not in ("pass", "unsupported", "skip")
    ]


@pytest.mark.embedded("asks for what only a plugin in the process has: pointers, versions before there is a client")
def test_what_passes_on_the_plugin_passes_here(reports):
    ours, plugin = (outcomes(reports[name], "pass") for name in ("ours", "plugin"))
    assert len(plugin) >= 51
    # This one tries slots that a table lacks; ours lacks none, where an older plugin's does.
    lost = plugin - ours - {"abi.unknown_slot_is_clean_error"}
    assert not lost, [check for check in reports["ours"]["checks"] if check["id"] in lost]
    assert len(ours) >= len(plugin)


def test_clients_that_are_older_than_the_plugin():
    """Their structs are shorter than the plugin underneath wants; what is behind them is not read."""
    said = fresh.run(
        """
        import ctypes, os
        import pypjrt
        plugin = pypjrt.Plugin(os.environ["TEST_LIBRARY"])
        whole = plugin.args
        def older(name, **given):
            out = whole(name, **given)
            if name == "PJRT_ExecuteOptions":
                known = type(out).context.offset + 8  # as of 2025
                ctypes.memset(ctypes.addressof(out) + known, 0xFF, ctypes.sizeof(out) - known)
                out.struct_size = known
            return out
        plugin.args = older
        client = pypjrt.Client(plugin)
        program = client.compile("func.func @main(%a: tensor<2xi32>) -> tensor<2xi32> {"
            "%0 = stablehlo.add %a, %a : tensor<2xi32> return %0 : tensor<2xi32>}")
        with client.devices() as devices:
            for i in range(3):
                a = client.buffer_from_host(bytearray([i, 0, 0, 0, 7, 0, 0, 0]), 4, [2], devices[0])
                print(list(bytes(program(a)[0].to_host())))
        """,
        backend=None,
        env={"PATHWAYS_PLUGIN": fresh.plugin_path(), "TEST_LIBRARY": str(pathways._native.library_path())},
    ).stdout
    assert said.splitlines() == [str([2 * i, 0, 0, 0, 14, 0, 0, 0]) for i in range(3)]


@pytest.mark.embedded("asks for what only a plugin in the process has: pointers, versions before there is a client")
def test_the_whole_table_is_there(reports):
    assert reports["ours"]["slots"] == 138
    assert reports["ours"]["platform"] == reports["plugin"]["platform"]
    names = {extension["name"] for extension in reports["plugin"]["extensions"]}
    ours = {extension["name"] for extension in reports["ours"]["extensions"]}
    wanted = {"FFI", "Layouts", "MemoryDescriptions", "Shardings", "PhaseCompile"}
    assert names & wanted <= ours, ours
