"""The entry point by which JAX finds Open Pathways.

JAX imports this module and calls initialize() in every program of an environment where the package is installed. So it
does nothing, and imports nothing, unless the environment asks for Pathways: if PATHWAYS_ADDRESS or PATHWAYS_DEVICES is
set, or the file of PATHWAYS_CONFIG sets one of them, or JAX_PLATFORMS (jax_platforms) names Pathways. A JAX_PLATFORMS
that excludes Pathways takes precedence. Once JAX has made its devices, jax_platforms has its old value. A program that
imports pathways has registered it already.
"""

import os
import sys
from typing import Any

from jax_plugins.pathways import config

# Whether JAX has found the plugin by itself, without an import of pathways.
found_by_jax = False


def chosen_platforms(jax: Any) -> list[str]:
    """Returns the platforms that the user asks JAX for, in order; an empty list if JAX is to choose."""
    said = jax.config.jax_platforms or ""
    # On a Cloud TPU machine, JAX itself sets this while it is imported.
    if said == "tpu,cpu" and not os.environ.get("JAX_PLATFORMS"):
        return []
    return [name.strip() for name in said.split(",") if name.strip()]


def _is_asked_for() -> bool:
    """Returns whether the environment sets the devices for Pathways."""
    if any(os.environ.get(name, "").strip() for name in ("PATHWAYS_ADDRESS", "PATHWAYS_DEVICES")):
        return True
    try:
        return not config.read().keys().isdisjoint(("address", "devices"))
    except config.ConfigError:
        return True  # the first use of JAX raises the error; otherwise the program would silently run elsewhere


def initialize() -> None:
    """Registers the backend, once, if the environment asks for it."""
    import jax

    platforms = chosen_platforms(jax)
    if "pathways" in platforms or (not platforms and _is_asked_for()):
        global found_by_jax
        found_by_jax = "pathways" not in sys.modules
        from pathways import _backend

        _backend.register()
