"""Runs benchmarks of Go and reads what they say."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]


def run(package, pattern, count, time):
    """Returns {benchmark: {unit: [a value each time]}}, without the "Benchmark" and the number of processors.

    {} where the benchmarks could not be run; why is on standard error then.
    """
    go = os.environ.get("GO") or shutil.which("go")
    if not go:
        print("Go was not found; its benchmarks are left out", file=sys.stderr)
        return {}
    command = [go, "test", "-run", "^$", "-bench", pattern, "-benchtime", time, "-count", str(count), package]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        said, _ = process.communicate()
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)  # go, and the tests it started
        process.wait()
        raise
    if process.returncode:
        print(said, file=sys.stderr)
        return {}
    found = {}
    for line in said.splitlines():
        words = line.split()
        if not line.startswith("Benchmark") or len(words) < 4:
            continue
        values = found.setdefault(words[0].removeprefix("Benchmark").rsplit("-", 1)[0], {})
        for value, unit in zip(words[2::2], words[3::2], strict=False):
            values.setdefault(unit, []).append(float(value))
    return found
