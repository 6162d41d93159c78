"""What a killed pytest leaves behind."""

import subprocess
import sys
from pathlib import Path

import fresh
import orphans
from waiting import comes

# Starts a process that nothing ties to it, as `pathways up` does, and says that it has.
STARTS = f"""
import os, subprocess, sys
sys.path.insert(0, {str(Path(orphans.__file__).parent)!r})
import orphans
orphans.watch()
subprocess.Popen(["sleep", "1000"], start_new_session=True, stdout=subprocess.DEVNULL)
print(os.environ[orphans.MARK], flush=True)
END
"""


def started(end: str) -> tuple[subprocess.Popen, str]:
    code = STARTS.replace("END", end)
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip()


def test_what_a_killed_process_has_started_is_ended():
    process, run = started("input()")
    assert len(orphans.started_with(orphans.MARK, run)) == 1
    process.kill()
    process.communicate()
    assert comes(lambda: not orphans.started_with(orphans.MARK, run))


def test_what_a_process_leaves_at_its_end_goes_on():
    process, run = started("")
    process.communicate(timeout=fresh.HANG_SECONDS)
    assert process.returncode == 0
    assert len(orphans.started_with(orphans.MARK, run)) == 1
    orphans.end(run)
