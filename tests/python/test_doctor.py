"""`pathways doctor`, and how the command line says that it is used."""

import io
import json
import subprocess
import sys

import fresh
import jax
import pathways
import pytest
from pathways import _doctor


def command(*arguments, env=None, module="pathways_command"):
    """Runs the command line, by one of the two modules that have it: the other one imports JAX."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=fresh.environment(env=env),
        capture_output=True,
        text=True,
        timeout=fresh.HANG_SECONDS,
    )


def test_doctor_is_one_screen_and_a_report(capsys):
    report = pathways.doctor()
    screen = capsys.readouterr().out
    assert report.ok, report.problems
    assert screen == f"{report}\n"
    assert len(screen.splitlines()) <= 24
    for fact in ("ready", jax.__version__, report.plugin["path"], report.plugin["sha256"][:16], "StableHLO", "8 × cpu"):
        assert fact in screen
    assert report.kinds == {"cpu": 8} and len(report.devices) == 8
    assert set(report.memories) >= {"device", "pinned_host"}


def test_doctor_on_the_command_line():
    done = command("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"Open Pathways {pathways.__version__}: ready\n")
    facts = json.loads(command("doctor", "--json").stdout)
    assert facts["ok"] is True and facts["kinds"] == {"cpu": 8}


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"PATHWAYS_LIBRARY": "/nowhere.so"}, "PATHWAYS_LIBRARY names /nowhere.so, and there is no such file"),
        ({"PATHWAYS_PLUGIN": "/nowhere.so"}, "/nowhere.so"),
        ({"PATHWAYS_DEVICES": "none"}, "PATHWAYS_DEVICES is 'none'; expected a whole number"),
    ],
)
def test_doctor_says_what_is_wrong(env, said):
    done = command("doctor", env=env)
    assert done.returncode == 1
    assert "not ready" in done.stdout.splitlines()[0]
    assert said in "".join(line for line in done.stdout.splitlines() if line.startswith("  missing"))
    assert "Traceback" not in done.stdout + done.stderr


def test_doctor_says_that_something_is_wrong_as_json():
    done = command("doctor", "--json", env={"PATHWAYS_LIBRARY": "/nowhere.so"})
    assert done.returncode == 1 and json.loads(done.stdout)["ok"] is False


@pytest.mark.parametrize(
    ("driver", "nanoseconds", "slow"),
    [("haltpoll", "0", True), ("haltpoll", "200000", False), ("intel_idle", "0", False), (None, None, False)],
)
def test_doctor_says_when_a_virtual_machine_halts_its_idle_processors(tmp_path, driver, nanoseconds, slow):
    setting = tmp_path / "module/haltpoll/parameters/guest_halt_poll_ns"
    for path, text in ((tmp_path / "devices/system/cpu/cpuidle/current_driver", driver), (setting, nanoseconds)):
        if text is not None:  # other machines lack the files
            path.parent.mkdir(parents=True)
            path.write_text(text + "\n")
    hints = _doctor._slow_to_wake(tmp_path)
    assert [f"as root: echo 200000 > {setting} (" in hint for hint in hints] == [True] * slow
    shown = [hint for hint in pathways.doctor(io.StringIO()).hints if "guest_halt_poll_ns" in hint]
    assert shown == _doctor._slow_to_wake()  # of this machine


def test_the_command_says_how_it_is_used():
    done = command("--help", module="pathways")
    assert done.returncode == 0
    for word in ("import pathways", "pathways doctor", "PATHWAYS_DEVICES", "PATHWAYS_PLUGIN", "exit codes"):
        assert word in done.stdout
    assert command("version").stdout == f"{pathways.__version__}\n"
    assert command().returncode == 2
    wrong = command("docter")
    assert wrong.returncode == 2 and "docter" in wrong.stderr and "doctor" in wrong.stderr


def test_help_of_doctor_has_an_example():
    said = command("doctor", "--help")
    assert said.returncode == 0 and "Examples:\n  pathways doctor\n" in said.stdout
    assert command("help", "doctor").stdout == said.stdout
