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
    found = {}
    for line in say("-run", "^$", "-bench", pattern, "-benchtime", time, "-count", str(count), package):
        words = line.split()
        if not line.startswith("Benchmark") or len(words) < 4:
            continue
        values = found.setdefault(words[0].removeprefix("Benchmark").rsplit("-", 1)[0], {})
        for value, unit in zip(words[2::2], words[3::2], strict=False):
            values.setdefault(unit, []).append(float(value))
    return found


def attributes(package, pattern, *arguments):
    """Returns {test: {attribute: value}} of the numbers that tests report as attributes, whether they pass or not.

    The arguments are the tests' own. {} where they could not be run; why is on standard error then.
    """
    found = {}
    for line in say("-run", pattern, "-count", "1", "-v", "-timeout", "30m", package, *arguments, may_fail=True):
        words = line.split()
        if line.startswith("=== ATTR") and len(words) == 5:
            found.setdefault(words[2], {})[words[3]] = float(words[4])
    return found


def say(*arguments, may_fail=False):
    """Runs go test and returns the lines it writes; none where it fails, unless it may."""
    go = os.environ.get("GO") or shutil.which("go")
    if not go:
        print("Go was not found; its benchmarks are left out", file=sys.stderr)
        return []
    process = subprocess.Popen(
        [go, "test", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate()
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)  # go, and the tests it started
        process.wait()
        raise
    if process.returncode:
        print(said, file=sys.stderr)
        if not may_fail:
            return []
    return said.splitlines()
