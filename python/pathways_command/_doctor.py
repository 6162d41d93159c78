"""The command `pathways doctor`, which is in Python: it looks at JAX's packages."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence

EXAMPLES = """\
Examples:
  pathways doctor
  pathways doctor --address tcp:10.0.0.5:8476        # this machine, and that cluster
  pathways doctor --json | python -m json.tool

exit codes: 0 ready, 1 something is missing (the report says what), 2 usage error"""


def main(does: str, arguments: Sequence[str]) -> int:
    """Runs the command, which does what `does` says, and returns its exit code."""
    description = f"""\
Use this first when something does not work. {does[0].upper()}{does[1:]}: versions,
plugins, devices, memory; with a cluster, also its controller and workers."""
    parser = argparse.ArgumentParser(
        "pathways doctor",
        description=description,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--address", help="address of a cluster's controller [PATHWAYS_ADDRESS]")
    parser.add_argument("--cluster", metavar="NAME", help="a cluster on this machine [PATHWAYS_CLUSTER]")
    parser.add_argument("--dir", metavar="DIRECTORY", help="directory of the clusters of this machine [PATHWAYS_DIR]")
    parser.add_argument("--json", action="store_true", help="print the facts as JSON")
    asked = parser.parse_args(arguments)
    address = asked.address
    if address is None and _names_cluster(asked):
        place = [word for name in ("cluster", "dir") if (said := vars(asked)[name]) for word in (f"--{name}", said)]
        told = subprocess.run(
            [sys.executable, "-m", "pathways_command", "address", *place],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        if told.returncode != 0:
            return told.returncode  # it has printed why
        address = told.stdout.strip()
    from pathways import _doctor

    report = _doctor.examine(address)
    print(json.dumps(report.as_dict(), indent=2) if asked.json else report)
    return 0 if report.ok else 1


def _names_cluster(asked: argparse.Namespace) -> bool:
    """Returns whether to check a cluster of this machine: if one is named and no address is given."""
    if asked.cluster or asked.dir:
        return True
    from jax_plugins.pathways import config

    def said(name: str) -> bool:
        return bool(os.environ.get(f"PATHWAYS_{name.upper()}", "").strip()) or name in file

    try:
        file = config.read()
    except config.ConfigError:
        return False  # the report shows the error
    return said("cluster") and not said("address")
