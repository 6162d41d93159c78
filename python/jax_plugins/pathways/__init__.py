"""How JAX finds Open Pathways by itself.

JAX imports this module and calls initialize() in every program of an environment where the package is installed. So
it does nothing, and imports nothing, unless the environment asks for Pathways: PATHWAYS_ADDRESS or PATHWAYS_DEVICES is
set, or the file of PATHWAYS_CONFIG says one of them, or JAX_PLATFORMS (jax_platforms) names it. A JAX_PLATFORMS that
leaves it out wins, and jax_platforms is as it was when JAX has made its devices. A program that imports pathways has
registered it already.
"""

import os
import sys
from typing import Any

from jax_plugins.pathways import config

# JAX has found the plugin by itself: no import of pathways has asked for it.
found_by_jax = False


def chosen_platforms(jax: Any) -> list[str]:
    """The platforms that the user asks JAX for, best first; none where JAX is to choose."""
    said = jax.config.jax_platforms or ""
    # On a Cloud TPU machine JAX itself fills this in while it is imported.
    if said == "tpu,cpu" and not os.environ.get("JAX_PLATFORMS"):
        return []
    return [name.strip() for name in said.split(",") if name.strip()]


def _is_asked_for() -> bool:
    """Whether the environment says which devices Pathways is to show."""
    if any(os.environ.get(name, "").strip() for name in ("PATHWAYS_ADDRESS", "PATHWAYS_DEVICES")):
        return True
    try:
        return not config.read().keys().isdisjoint(("address", "devices"))
    except config.ConfigError:
        return True  # the first use of JAX raises it; otherwise the program would run elsewhere, without a word


def initialize() -> None:
    """Registers the backend, once, if the environment asks for it."""
    import jax

    platforms = chosen_platforms(jax)
    if "pathways" in platforms or (not platforms and _is_asked_for()):
        global found_by_jax
        found_by_jax = "pathways" not in sys.modules
        from pathways import _backend

        _backend.register()
