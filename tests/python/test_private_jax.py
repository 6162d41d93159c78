"""The package touches what JAX keeps private in one module, and in one for each process without JAX."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "python"
ALLOWED = {"pathways/_private.py", "pathways_command/_handlers.py", "pathways_command/_partition.py"}
PRIVATE = re.compile(r"\bjax\._[a-z]|\bfrom jaxlib\b|\bxla_(?:bridge|client)\b")


@pytest.mark.embedded("reads the source")
def test_private_parts_of_jax_are_used_in_one_module():
    found = {str(p.relative_to(ROOT)) for p in ROOT.rglob("*.py") if PRIVATE.search(p.read_text(encoding="utf-8"))}
    assert found == ALLOWED
