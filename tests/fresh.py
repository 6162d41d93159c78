"""Runs a piece of Python in a process of its own, as a user's script would run.

Three doors lead to devices: "pathways" (this project), "plugin" (the very plugin file that this project picked, driven
by stock JAX with register_plugin) and "jaxlib" (the CPU client inside jaxlib). A script sees as many devices whichever
door it came through, so that what it prints or saves can be compared.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

DEVICES = 8
# A guard against a process that hangs: far above what any script here takes, so that only a hang reaches it.
HANG_SECONDS = 600

_DOORS = {
    "pathways": "import pathways\n",
    "plugin": textwrap.dedent("""\
        import os
        from jax._src import xla_bridge
        xla_bridge.register_plugin("plugin", library_path=os.environ["TEST_PLUGIN"],
                                   options={"cpu_device_count": int(os.environ["TEST_DEVICES"])})
        """),
    "jaxlib": textwrap.dedent("""\
        import os
        import jax
        jax.config.update("jax_num_cpu_devices", int(os.environ["TEST_DEVICES"]))
        """),
}

# A dump of every thread's stack just before the guard strikes says where a hang sits. A shell has its background jobs
# ignore Ctrl-C, and they have their children do so, which is not what a test of Ctrl-C is about.
_PRELUDE = textwrap.dedent(f"""\
    import faulthandler, signal
    faulthandler.dump_traceback_later({HANG_SECONDS - 20}, exit=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    """)


def plugin_path() -> str:
    """Gives the file of the plugin that this process drives through pathways."""
    import pathways

    return pathways._native.info()["plugin"]["path"]


def environment(door: str = "pathways", devices: int = DEVICES, env: dict[str, str] | None = None) -> dict[str, str]:
    """Gives the environment of a script that goes through a door, with env on top."""
    out = dict(os.environ)
    for name in ("JAX_PLATFORMS", "XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR", "PATHWAYS_VIRTUAL_DEVICES"):
        out.pop(name, None)
    out["TEST_DEVICES"] = out["PATHWAYS_DEVICES"] = str(devices)
    out["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, [out.get("PYTHONPATH")])])
    out["PYTHONUNBUFFERED"] = "1"
    if door == "jaxlib":
        out["JAX_PLATFORMS"] = "cpu"
    if door == "plugin":
        out["JAX_PLATFORMS"] = "plugin,cpu"
        out["TEST_PLUGIN"] = plugin_path()
    out.update(env or {})
    return out


def source(code: str, door: str | None = "pathways") -> str:
    """Gives the text of a script: the hang guard, the door (None: the script opens its own) and the code."""
    return _PRELUDE + (_DOORS[door] if door else "") + textwrap.dedent(code)


def start(code: str, door: str | None = "pathways", env: dict[str, str] | None = None, **popen) -> subprocess.Popen:
    """Starts a script with pipes for its output. The caller waits for it."""
    return _python(source(code, door), environment(door or "pathways", env=env), **popen)


def _python(text: str, env: dict[str, str], **popen) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", text],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **popen,
    )


def finish(process: subprocess.Popen, told: str | None = None) -> subprocess.CompletedProcess:
    """Tells a script something, waits for it and gives what it wrote. One that hangs is killed and fails the test."""
    try:
        out, err = process.communicate(told, timeout=HANG_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"the script hung; stdout:\n{out}\nstderr:\n{err}") from None
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def end(processes) -> None:
    """Kills those scripts that nobody waited for."""
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.communicate()


def run(code: str, door: str | None = "pathways", env: dict[str, str] | None = None, check: bool = True):
    """Runs a script to its end and gives its CompletedProcess; check asserts that it ended with 0."""
    done = finish(start(code, door, env))
    if check:
        assert done.returncode == 0, f"exit {done.returncode}; stdout:\n{done.stdout}\nstderr:\n{done.stderr}"
    return done


# A child leaves the loop and goes on as the script: at the level of the module, where the script itself would stand, so
# that the interpreter's end is the same.
_FORKING = """\
import json, os, tempfile
import jax, jax.numpy, jax.sharding, numpy
assert len(os.listdir("/proc/self/task")) == 1, "a fork would leave threads behind"
ended, running, left, script = [], {}, *json.loads(input())
while left or running:
    if left and len(running) < len(os.sched_getaffinity(0)):
        left -= 1
        files = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        child = os.fork()
        if child == 0:
            os.dup2(files[0].fileno(), 1)
            os.dup2(files[1].fileno(), 2)
            break
        running[child] = files
    else:
        child, status = os.wait()
        said = []
        for file in running.pop(child):
            file.seek(0)
            said.append(file.read().decode())
        ended.append((os.waitstatus_to_exitcode(status), *said))
else:
    print(json.dumps(ended))
    script = ""
exec(script, globals())
"""


def forked(code: str, times: int, door: str = "pathways") -> list[subprocess.CompletedProcess]:
    """Runs a script so many times, on every processor, each time in a child of a process that has imported JAX only.

    Where importing takes most of a script's time. The child opens the door, so that nothing of it is older than it.
    """
    env = {"OPENBLAS_NUM_THREADS": "1"}  # NumPy's would be a second thread
    process = _python(_FORKING, environment(door, env=env))
    done = finish(process, json.dumps([times, source(code, door)]) + "\n")
    assert done.returncode == 0, done.stderr
    ended = json.loads(done.stdout)
    assert len(ended) == times
    return [subprocess.CompletedProcess(code, *each) for each in ended]
