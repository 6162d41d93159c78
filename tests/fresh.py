"""Runs a piece of Python in a separate process, like a user's script.

There are three backends: "pathways" (this project), "plugin" (the very plugin file that this project picked, driven by
stock JAX with register_plugin) and "jaxlib" (the CPU client inside jaxlib). A script sees as many devices with each, so
that what it prints or saves can be compared.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
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
# XLA compiles several times as fast without its optimizations, by its older emitter of fusions, and all of a program as
# one piece; no test is about what these do.
UNOPTIMIZED = (
    "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1 "
    "--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters"
)
# XLA_FLAGS of scripts, and of the workers that tests start: those of the tests' own process.
flags = ""

_BACKENDS = {
    "pathways": "import pathways\n",
    "plugin": textwrap.dedent("""\
        import os
        import jax
        from jax._src import xla_bridge
        jax.config.update("jax_platforms", "plugin,cpu")
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
        out["TEST_PLUGIN"] = plugin_path()
    out.update(env or {})
    return out


def source(code: str, backend: str | None = "pathways") -> str:
    """Returns the text of a script: the hang guard, the frontend (None: the script opens its own) and the code."""
    return _PRELUDE + (_BACKENDS[backend] if backend else "") + textwrap.dedent(code)


def start(
    code: str, backend: str | None = "pathways", env: dict[str, str] | None = None, imports: bool | None = None
) -> subprocess.Popen:
    """Starts a script with pipes for its output. The caller waits for it. For imports see run()."""
    script, asked = source(code, backend), environment(backend or "pathways", env=env)
    return _started(script, asked, _imports(backend) if imports is None else imports)


def _started(script: str, env: dict[str, str], imports: bool) -> subprocess.Popen:
    if not imports and (forked := _server.start(script, env)):
        return forked
    return subprocess.Popen([sys.executable, "-c", script], env=env, start_new_session=True, **_PIPES)


_PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


def _imports(backend: str | None) -> bool:
    """Whether the import of JAX is part of what a script with this backend is for, unless the test says so."""
    return backend not in ("pathways", "plugin")


def finish(process: subprocess.Popen, told: str | None = None) -> subprocess.CompletedProcess:
    """Writes to a script, waits for its end and returns its output. If it hangs, kills it and fails the test."""
    try:
        out, err = process.communicate(told, timeout=HANG_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"the script hung; stdout:\n{out}\nstderr:\n{err}") from None
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def hear(process: subprocess.Popen) -> str:
    """Reads a line of a script."""
    line = process.stdout.readline()
    assert line, process.stderr.read()
    return line.strip()


def tell(process: subprocess.Popen, line: str = "") -> None:
    """Writes a line to a script, which may wait for no more than that."""
    print(line, file=process.stdin, flush=True)


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

    Importing JAX takes most of a script's time. So a script is forked by a process that has imported JAX and nothing of
    this project, unless the import is part of what is tested (imports; by default it is for a script that opens its
    own frontend, and for jaxlib's), or env has more than says which devices to use.
    """
    script, asked = source(code, backend), environment(backend or "pathways", env=env)
    if imports is None:
        imports = _imports(backend)
    ended = None if imports else _server.ask(script, asked)
    done = ended[0] if ended else finish(_started(script, asked, imports))
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
# interpreter ends in the same way. It opens the frontend, so that no part of that is older than the child. One that is
# started only is forked by a process that ends at once: its parent is then the process that asked. What the import made
# is frozen: a script would look through all of it whenever it collects, above all at its end, which took longer than
# most scripts.
_FORKING = """\
import gc, json, os, sys, tempfile
before = set(os.environ)
import jax, jax.numpy, jax.sharding, numpy
added = {name: os.environ[name] for name in set(os.environ) - before}
gc.freeze()
requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")

def begin():
    os.setsid()
    for fd, file in enumerate(files):
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
    if asked["pipes"]:
        files = [open(pipe, mode, 0) for pipe, mode in zip(asked["pipes"], ("rb", "wb", "wb"))]
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child == 0:
                break
            print(child, end="", file=answers, flush=True)
            os._exit(0)
        os.waitpid(between, 0)
        print(file=answers, flush=True)
        for file in files:
            file.close()
        continue
    left = asked["times"]
    while left or running:
        if left and len(running) < len(os.sched_getaffinity(0)):
            left -= 1
            files = open(os.devnull), tempfile.TemporaryFile(), tempfile.TemporaryFile()
            child = os.fork()
            if child == 0:
                break
            running[child] = files
        else:
            child, status = os.wait()
            said = []
            for file in running.pop(child)[1:]:
                file.seek(0)
                said.append(file.read().decode(errors="replace"))
            ended.append((os.waitstatus_to_exitcode(status), *said))
    if child == 0:
        break
    print(json.dumps(ended), file=answers, flush=True)
if child == 0:
    exec(begin(), globals())
"""


class _Forked(subprocess.Popen):
    """A script that the server has forked: a child of this process, as if it had been started here."""

    def __init__(self, fork):
        self._fork = fork
        super().__init__(["script"], **_PIPES)

    def _execute_child(self, *how):  # private to subprocess; so in Python 3.11 to 3.13
        pipes = how[10:16]  # each a pair of ends, of which the script has one
        try:
            self.pid = self._fork([pipes[0], pipes[3], pipes[5]])
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)


class _Server:
    """The process that has imported JAX: started when it is first needed, ended with this one."""

    # Variables that neither JAX's import reads nor Go, which sees the environment that its process was started with.
    UNREAD = {"PATHWAYS_ADDRESS", "PATHWAYS_CONFIG", "PATHWAYS_DEVICES", "PATHWAYS_LIBRARY", "PATHWAYS_WAIT"}
    UNREAD |= {"PYTEST_CURRENT_TEST", "TEST_DEVICES", "TEST_PLUGIN", "XLA_FLAGS"}  # read when a backend is opened
    UNREAD |= {"GALLERY_OUT", "GALLERY_STEPS", "GALLERY_WIDTH"}  # of the examples
    ADOPT = 36  # PR_SET_CHILD_SUBREAPER: an orphan below this process becomes its child

    def __init__(self):
        self._process, self._env, self._asking = None, {}, threading.Lock()

    def ask(self, script: str, env: dict[str, str], times: int = 1) -> list[subprocess.CompletedProcess] | None:
        """Runs a script several times; None if JAX was imported in another environment, or a script is running."""
        with self._idle(env) as idle:
            if not idle:
                return None
            answer = self._answer(script=script, env=env, times=times, pipes=[])
            return [subprocess.CompletedProcess(script, *each) for each in json.loads(answer)]

    def start(self, script: str, env: dict[str, str]) -> subprocess.Popen | None:
        """Starts a script; None as above."""
        prctl = ctypes.CDLL(None).prctl

        def fork(pipes: list[int]) -> int:
            paths = [f"/proc/{os.getpid()}/fd/{pipe}" for pipe in pipes]
            prctl(self.ADOPT, 1, 0, 0, 0)
            try:
                return int(self._answer(script=script, env=env, pipes=paths))
            finally:
                prctl(self.ADOPT, 0, 0, 0, 0)

        with self._idle(env) as idle:
            return _Forked(fork) if idle else None

    @contextlib.contextmanager
    def _idle(self, env: dict[str, str]):
        """Whether the server has JAX as it is in this environment, and runs nothing; it is the caller's until then."""
        if not self._asking.acquire(blocking=False):
            yield False
            return
        try:
            if self._process is None:
                self._begin(environment())
            yield self._read(env) == self._read(self._env)
        finally:
            self._asking.release()

    def _answer(self, **request) -> str:
        self._process.stdin.write(json.dumps(request | {"cwd": os.getcwd()}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the process that runs scripts has ended; what it wrote stands above"
        return answer

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
