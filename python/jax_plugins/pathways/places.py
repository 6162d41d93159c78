"""Finds the directories of installed packages. Commands use it too, so it imports neither the package nor JAX."""

from __future__ import annotations

import importlib.util
import os
import site
import sys
from pathlib import Path


def package_dirs() -> list[str]:
    """Returns the directories with installed packages, in the order of sys.path: a packaged plugin may be in one."""
    names = {"site-packages", "dist-packages"}
    found = [path for path in sys.path if Path(path).name in names]
    # JAX's own directory as well: one made by `pip install --target` may have any name.
    jax = importlib.util.find_spec("jax")
    if jax is not None and jax.origin is not None:
        found.append(str(Path(jax.origin).parents[1]))
    found += site.getsitepackages()
    if site.ENABLE_USER_SITE:
        found.append(site.getusersitepackages())
    return [path for path in dict.fromkeys(os.path.abspath(path) for path in found) if os.path.isdir(path)]


def joined() -> bytes:
    """Returns the list in the form for libpathways.so. It omits directories whose names contain a colon."""
    return os.fsencode(":".join(path for path in package_dirs() if ":" not in path))
