"""Building the package: what a person is told whose machine lacks what the build takes."""

import subprocess
import sys
import textwrap
from pathlib import Path

import fresh
import pytest

ROOT = Path(__file__).parents[2]
# Python imports it at its start; so the build finds no Go wherever it looks.
NO_GO = textwrap.dedent("""\
    import shutil
    which = shutil.which
    shutil.which = lambda name, *rest, **more: None if str(name).endswith("go") else which(name, *rest, **more)
    """)


def build(out, env):
    """Builds the wheel of this tree as pip does, by its build backend, and returns how that ended."""
    code = f"import hatchling.build; hatchling.build.build_wheel({str(out)!r})"
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=fresh.environment(env=env), capture_output=True, text=True
    )


@pytest.mark.parametrize(
    ("lacks", "said"),
    [
        ("go", "openpathways: Go was not found on PATH; install Go 1.26 or newer (https://go.dev/dl) and try again."),
        (
            "compiler",
            "openpathways: the C compiler 'no-such-compiler' was not found; install gcc (Debian, Ubuntu: apt install "
            "gcc libc6-dev) or set CC, and try again.",
        ),
    ],
)
def test_a_build_without_what_it_takes_stops_with_one_sentence(tmp_path, lacks, said):
    pytest.importorskip("hatchling")
    (tmp_path / "sitecustomize.py").write_text(NO_GO)
    env = {"PYTHONPATH": str(tmp_path)} if lacks == "go" else {"CC": "no-such-compiler"}
    done = build(tmp_path, env)
    assert done.returncode == 1
    assert (done.stdout + done.stderr).strip() == said
    assert not list(tmp_path.glob("*.whl"))
