"""Collectives of N processes by a program of C that does nothing else, in the way of transport/collective: passes.c.

python passes.py N
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import sides  # noqa: E402

COMPILER = shutil.which("cc")
stream = sides.answers()


def serve(directory):
    program = pathlib.Path(directory, "passes")
    source = pathlib.Path(__file__).with_name("passes.c")
    subprocess.run([COMPILER, "-O3", "-march=native", "-pthread", "-o", program, source], check=True)

    def answer(operation, size, calls):
        asked = [program, operation, sys.argv[1], str(size), str(calls)]
        answer = subprocess.run(asked, check=True, stdout=subprocess.PIPE).stdout.split()
        return dict(zip(("seconds", "ran", "queued"), map(float, answer), strict=True))

    sides.serve(stream, answer)


if COMPILER:
    with tempfile.TemporaryDirectory() as directory:
        serve(directory)
else:
    sides.leave_out(stream, "no C compiler (cc)")
