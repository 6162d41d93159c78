"""Reads the file that PATHWAYS_CONFIG names, for scripts. core/command reads the same file for commands.

JAX calls this in every program, before it is known whether that uses Pathways. So this imports neither the package nor,
if there is no such file, anything that is slow to import.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

# The options of `pathways options`; an option's flag, variable and line have the same name.
OPTIONS = (
    *("address", "batch", "cache", "cache-bytes", "cluster", "devices", "dir", "dispatch", "driver", "evict-after"),
    *("first-device", "follow", "heartbeat", "http", "import", "island", "json", "last", "lease", "listen", "log"),
    *("memory-limit", "memory-wait", "name", "no-restart", "nodes", "order", "platform", "silence", "state"),
    *("stuck-after", "tenants", "tls-ca", "tls-cert", "tls-key", "tls-mutual", "token-file", "wait", "workers"),
)
EXPECTED = 'lines of the form name = value, such as wait = "1m", and the names are ' + ", ".join(OPTIONS)


class ConfigError(Exception):
    """A file that cannot be used. Its arguments are a code, such as INVALID_ARGUMENT, and the message."""


class Said(NamedTuple):
    """The value that a line of the file sets."""

    text: str
    where: str  # the file and the line


def read() -> dict[str, Said]:
    """Reads the file and checks its lines. Returns the values by option; none if there is no file.

    Raises:
      ConfigError: NOT_FOUND for a file that cannot be read; INVALID_ARGUMENT for an invalid line, or one that names no
        option.
    """
    path = os.environ.get("PATHWAYS_CONFIG", "").strip()
    if not path:
        return {}
    import tomllib

    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        values = tomllib.loads(text)
    except OSError as error:
        code = "PERMISSION_DENIED" if isinstance(error, PermissionError) else "NOT_FOUND"
        raise ConfigError(code, f"the configuration file {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        # A message ends with "(at line 3, column 5)" or "(at end of document)".
        why, _, place = str(error).partition(" (at ")
        line = re.match(r"line \d+", place)
        where = f"{path}, {line[0] if line else f'line {_last(text)}'}" if place else path
        if place:
            why += _quotes_missing(text, int(line[0].removeprefix("line ")) if line else _last(text))
        raise ConfigError("INVALID_ARGUMENT", f"{where}: {why}; expected {EXPECTED}") from None
    lines = sorted((_line(text, name), name) for name in values)  # so that the first of several mistakes is reported
    said = {}
    for line, name in lines:
        where, value = f"{path}, line {line}", values[name]
        if name not in OPTIONS:
            raise ConfigError("INVALID_ARGUMENT", f'{where}: there is no option "{name}"; expected {EXPECTED}')
        if not isinstance(value, str | int | float):  # a bool is an int
            raise ConfigError(
                "INVALID_ARGUMENT",
                f"{where}: the value of {name} is a list, a table or a date; expected a text in quotes, a number, "
                "true or false",
            )
        said[name] = Said(str(value).lower() if isinstance(value, bool) else str(value).strip(), where)
    return said


def _quotes_missing(text: str, line: int) -> str:
    """Returns an addition to the error about a line, if its value is a text without quotes, or ""."""
    said = "".join(text.split("\n")[line - 1 : line]).rstrip("\r")
    value = re.match(r"""[^=#]+=\s*([^\s"'\[{#][^"'#]*?)\s*(?:#.*)?$""", said)
    if not value or not re.search("[A-Za-z/~]", value[1]) or value[1].lower() in ("true", "false"):
        return ""
    return f'; a text needs quotes: "{value[1]}"'


def _last(text: str) -> int:
    return max(len(text.splitlines()), 1)


def _line(text: str, name: str) -> int:
    """Returns the first line that begins with a name, or the last line."""
    begins = re.compile(rf"""\s*\[*\s*["']?{re.escape(name)}["']?\s*[\].=]""")
    return next((n for n, line in enumerate(text.splitlines(), 1) if begins.match(line)), _last(text))
