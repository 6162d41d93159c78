"""Runs a piece of Python in a separate process, like a user's script.

There are three backends: "pathways" (this project), "plugin" (the very plugin file that this project picked, driven by
stock JAX with register_plugin) and "jaxlib" (the CPU client inside jaxlib). A script sees as many devices with each, so
that what it prints or saves can be compared.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

DEVICES = 8
# A guard against hanging processes: much longer than any script here takes, so that only a hang reaches it.
HANG_SECONDS = 600
# XLA_FLAGS of scripts, and of the workers that tests start: those of the tests' own process.
flags = ""

_BACKENDS = {
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

# A dump of every thread's stack just before the guard ends the process shows where it hangs. Background jobs of a shell
# ignore Ctrl-C, and so do their children, which would defeat tests of Ctrl-C.
_PRELUDE = textwrap.dedent(f"""\
    import faulthandler, signal
    faulthandler.dump_traceback_later({HANG_SECONDS - 20}, exit=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    """)


def plugin_path() -> str:
    """Returns the file of the plugin that this process uses through pathways."""
    import pathways

    return pathways._native.info()["plugin"]["path"]


def environment(backend: str = "pathways", devices: int = DEVICES, env: dict[str, str] | None = None) -> dict[str, str]:
    """Returns the environment of a script that uses a frontend, with env on top."""
    out = dict(os.environ)
    for name in ("JAX_PLATFORMS", "XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR", "PATHWAYS_VIRTUAL_DEVICES"):
        out.pop(name, None)
    if flags:
        out["XLA_FLAGS"] = flags
    out["TEST_DEVICES"] = out["PATHWAYS_DEVICES"] = str(devices)
    out["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, [out.get("PYTHONPATH")])])
    out["PYTHONUNBUFFERED"] = "1"
    if backend == "jaxlib":
        out["JAX_PLATFORMS"] = "cpu"
    if backend == "plugin":
        out["JAX_PLATFORMS"] = "plugin,cpu"
        out["TEST_PLUGIN"] = plugin_path()
    out.update(env or {})
    return out


def source(code: str, backend: str | None = "pathways") -> str:
    """Returns the text of a script: the hang guard, the frontend (None: the script opens its own) and the code."""
    return _PRELUDE + (_BACKENDS[backend] if backend else "") + textwrap.dedent(code)


def start(code: str, backend: str | None = "pathways", env: dict[str, str] | None = None, **popen) -> subprocess.Popen:
    """Starts a script with pipes for its output. The caller waits for it."""
    return _python(source(code, backend), environment(backend or "pathways", env=env), **popen)


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
    """Writes to a script, waits for its end and returns its output. If it hangs, kills it and fails the test."""
    try:
        out, err = process.communicate(told, timeout=HANG_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"the script hung; stdout:\n{out}\nstderr:\n{err}") from None
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def end(processes) -> None:
    """Ends scripts, in any state, and closes their pipes."""
    for process in processes:
        process.kill()  # does nothing if it has ended
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            with contextlib.suppress(BrokenPipeError):  # what stdin holds for a script that has ended
                pipe.close()


def run(
    code: str,
    backend: str | None = "pathways",
    env: dict[str, str] | None = None,
    check: bool = True,
    imports: bool | None = None,
) -> subprocess.CompletedProcess:
    """Runs a script to its end and returns how it ended; check asserts that it ended with 0.

    Importing JAX takes most of a script's time. So a script is a child of a process that has imported JAX and nothing
    of this project, unless the import is part of what is tested (imports; by default it is for all backends but
    "pathways"), or env has more than says which devices to use.
    """
    asked = environment(backend or "pathways", env=env)
    if imports is None:
        imports = backend != "pathways"
    ended = None if imports else _server.ask(source(code, backend), asked)
    done = ended[0] if ended else finish(_python(source(code, backend), asked))
    if check:
        assert done.returncode == 0, f"exit {done.returncode}; stdout:\n{done.stdout}\nstderr:\n{done.stderr}"
    return done


def forked(code: str, times: int) -> list[subprocess.CompletedProcess]:
    """Runs a script several times, on all processors, each time in a child of a process that has only imported JAX."""
    ended = _server.ask(source(code), environment(), times)
    assert ended is not None, "the environment is not the one that JAX was imported in"
    assert len(ended) == times
    return ended


# A child leaves the loops and continues as the script, at the level of the module like a script, so that the
# interpreter ends in the same way. It opens the frontend, so that no part of that is older than the child.
_FORKING = """\
import json, os, sys, tempfile
before = set(os.environ)
import jax, jax.numpy, jax.sharding, numpy
added = {name: os.environ[name] for name in set(os.environ) - before}
requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")

def begin():
    os.setsid()
    for fd, file in enumerate((open(os.devnull), *files)):
        os.dup2(file.fileno(), fd)
    os.environ.clear()
    os.environ.update(added | asked["env"])
    os.chdir(asked["cwd"])
    script, here = asked["script"], globals()
    for name in [name for name in here if not name.startswith("__")]:
        del here[name]
    return script

child = -1
for request in requests:
    assert len(os.listdir("/proc/self/task")) == 1, "a fork would leave threads behind"
    asked, ended, running = json.loads(request), [], {}
    left = asked["times"]
    while left or running:
        if left and len(running) < len(os.sched_getaffinity(0)):
            left -= 1
            files = tempfile.TemporaryFile(), tempfile.TemporaryFile()
            child = os.fork()
            if child == 0:
                break
            running[child] = files
        else:
            child, status = os.wait()
            said = []
            for file in running.pop(child):
                file.seek(0)
                said.append(file.read().decode(errors="replace"))
            ended.append((os.waitstatus_to_exitcode(status), *said))
    if child == 0:
        break
    print(json.dumps(ended), file=answers, flush=True)
if child == 0:
    exec(begin(), globals())
"""


class _Server:
    """The process that has imported JAX: started when it is first needed, ended with this one."""

    # Variables that neither JAX's import reads nor Go, which sees the environment that its process was started with.
    UNREAD = {"PATHWAYS_ADDRESS", "PATHWAYS_DEVICES", "PATHWAYS_WAIT", "PYTEST_CURRENT_TEST", "TEST_DEVICES"}
    UNREAD |= {"GALLERY_OUT", "GALLERY_STEPS", "GALLERY_WIDTH"}  # of the examples

    def __init__(self):
        self._process, self._env, self._asking = None, {}, threading.Lock()

    def ask(self, script: str, env: dict[str, str], times: int = 1) -> list[subprocess.CompletedProcess] | None:
        """Runs a script several times; None if JAX was imported in another environment, or a script is running."""
        if not self._asking.acquire(blocking=False):
            return None
        try:
            if self._process is None:
                self._begin(environment())
            if self._read(env) != self._read(self._env):
                return None
            request = {"script": script, "env": env, "cwd": os.getcwd(), "times": times}
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
            assert answer, "the process that runs scripts has ended; what it wrote stands above"
            return [subprocess.CompletedProcess(script, *each) for each in json.loads(answer)]
        finally:
            self._asking.release()

    def _begin(self, env: dict[str, str]) -> None:
        self._env = env
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore:os.fork:RuntimeWarning", "-c", _FORKING],
            env=env | {"OPENBLAS_NUM_THREADS": "1"},  # NumPy's would be more threads
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        atexit.register(self._end)

    def _end(self) -> None:
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def _read(self, env: dict[str, str]) -> dict[str, str]:
        return {name: value for name, value in env.items() if name not in self.UNREAD}


_server = _Server()
