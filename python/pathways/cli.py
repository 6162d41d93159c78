"""The command `pathways`.

Exit codes: 0, well; 1, Pathways does not work here, and the output says why; 2, the command line was not understood.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

DESCRIPTION = """\
Open Pathways runs ordinary JAX on every accelerator through one Go core.

In a script, one import before the first use of JAX is all:

  import pathways
  pathways.init(devices=8)     # or PATHWAYS_DEVICES=8 in the environment
  import jax
  print(jax.devices())
"""

EPILOG = """\
examples:
  pathways doctor              what is here, which plugin was chosen and why, what is missing
  pathways doctor --json       the same for a program
  PATHWAYS_DEVICES=8 python train.py
                               an unchanged JAX script on eight Pathways devices

variables:
  PATHWAYS_DEVICES             number of devices; on a CPU, as many as JAX itself would show if not set
  PATHWAYS_PLUGIN              path of the PJRT plugin to drive, instead of the one found
  PATHWAYS_PLUGIN_DIRS         further directories to look for plugin packages in, colon-separated
  PATHWAYS_LIBRARY             another libpathways.so than the one of the package

exit codes: 0 well, 1 Pathways does not work here, 2 the command line was not understood
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pathways", description=DESCRIPTION, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", title="commands", metavar="COMMAND")
    doctor = commands.add_parser(
        "doctor",
        help="look at this installation and say what is missing",
        description="Looks at versions, plugins, devices and memory, and says what is missing and how to get it.",
    )
    doctor.add_argument("--json", action="store_true", help="print the facts as JSON")
    commands.add_parser("version", help="print the version", description="Prints the version of the package.")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and gives its exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command == "version":
        from pathways import __version__

        print(__version__)
        return 0
    if options.command == "doctor":
        from pathways import _doctor

        report = _doctor.examine()
        print(json.dumps(report.as_dict(), indent=2) if options.json else report)
        return 0 if report.ok else 1
    parser.print_help(sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
