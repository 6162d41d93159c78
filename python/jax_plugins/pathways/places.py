"""Where packages are installed. Commands ask too, so this imports neither the package nor JAX."""

from __future__ import annotations

import importlib.util
import os
import site
import sys
from pathlib import Path


def package_dirs() -> list[str]:
    """Directories that hold installed packages, in the order of sys.path: where a packaged plugin may be."""
    names = {"site-packages", "dist-packages"}
    found = [path for path in sys.path if Path(path).name in names]
    # JAX's own place as well: an environment made by `pip install --target` has any name.
    jax = importlib.util.find_spec("jax")
    if jax is not None and jax.origin is not None:
        found.append(str(Path(jax.origin).parents[1]))
    found += site.getsitepackages()
    if site.ENABLE_USER_SITE:
        found.append(site.getusersitepackages())
    return [path for path in dict.fromkeys(os.path.abspath(path) for path in found) if os.path.isdir(path)]


def joined() -> bytes:
    """The same as libpathways.so takes it. A colon cannot be written in the list; such a directory is not searched."""
    return os.fsencode(":".join(path for path in package_dirs() if ":" not in path))
