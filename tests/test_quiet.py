"""A script that is right prints what it prints itself, and nothing else."""

import re
from pathlib import Path

import fresh
import pytest

pytestmark = pytest.mark.versions

README = Path(__file__).parent.parent / "README.md"

CACHED = """\
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_compilation_cache_dir", {path!r})
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    print(jax.jit(lambda x: jnp.sin(x @ x).sum())(jnp.ones((64, 64))))
    """


def test_a_capture_prints_nothing():
    (figure_two,) = (b for b in re.findall(r"```python\n(.*?)```", README.read_text(), re.S) if "add_slice" in b)
    done = fresh.run(figure_two.replace("pathways.init(devices=8)\n", ""), imports=True)
    assert done.stdout == "[3. 5.] [2. 4.]\n"
    assert done.stderr == ""


def test_the_persistent_cache_prints_nothing_when_it_is_used(tmp_path):
    code = CACHED.format(path=str(tmp_path))
    first, second = (fresh.run(code, imports=True) for _ in range(2))
    assert list(tmp_path.glob("*-cache"))
    assert first.stdout == second.stdout != ""
    assert first.stderr == second.stderr == ""
