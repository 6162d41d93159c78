"""The user's settings: the arguments of init() and the PATHWAYS_* variables, checked."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jax_plugins.pathways import config

from pathways._errors import PathwaysError, invalid_argument

MAX_DEVICES = 4096
OPTIONS = ("address", "devices", "elastic", "memory_limit", "memory_wait", "platform", "wait")
WAIT = 30.0  # seconds, if the user sets nothing
# The addresses that capi/cluster connects to, and what is right of the colon. An IPv6 address stands in brackets.
SCHEMES = {
    "tcp": r"(?:[^:\s]+|\[[^\s\]]+\]):(?P<port>[0-9]{1,5})",
    "unix": r".+",
    "local": r"(?:(?P<workers>[0-9]{1,5})x)?(?P<devices>[0-9]{1,5})",
    "sim": r"(?:(?P<workers>[0-9]{1,5})x)?(?P<devices>[0-9]{1,5})",
}
MAX_PORT = 65535


@dataclass(frozen=True)
class Settings:
    """Checked settings. None means that the user set nothing."""

    address: str | None = None
    devices: int | None = None
    memory_limit: int | None = None  # bytes per device
    wait: float | None = None  # seconds
    memory_wait: float | None = None  # seconds
    elastic: bool | None = None  # with devices, on a cluster
    platform: str | None = None  # on a cluster; of several, such as "cuda,cpu", the first is JAX's default

    @classmethod
    def of_arguments(
        cls,
        address: Any,
        devices: Any,
        memory_limit: Any,
        memory_wait: Any,
        wait: Any,
        elastic: Any,
        platform: Any,
        unknown: dict[str, Any],
    ) -> Settings:
        """Checks the arguments of init(). Raises PathwaysError INVALID_ARGUMENT."""
        if unknown:
            names = ", ".join(repr(name) for name in sorted(unknown))
            raise invalid_argument(f"pathways.init() has no option {names}; its options are {', '.join(OPTIONS)}")
        return cls(
            None if address is None else _address(address, "address"),
            None if devices is None else _count(devices, "devices"),
            None if memory_limit is None else parse_bytes(memory_limit, "memory_limit"),
            None if wait is None else _seconds(wait, "wait"),
            None if memory_wait is None else _seconds(memory_wait, "memory_wait"),
            _elastic(elastic, devices) or None,
            None if platform is None else _platform(platform, "platform"),
        )

    def with_environment(self) -> Settings:
        """Fills in missing settings from the PATHWAYS_* variables, or from the file that PATHWAYS_CONFIG names.

        Raises PathwaysError for an invalid value, and for an invalid line of the file.

        PATHWAYS_DEVICES and PATHWAYS_MEMORY_LIMIT apply to this machine, and have no effect with a cluster: workers
        read them too, and the shell that starts workers may also run the script. PATHWAYS_PLATFORM has no effect
        without a cluster.
        """
        address, devices, memory_limit, wait = self.address, self.devices, self.memory_limit, self.wait
        said = _variables()
        if address is None and (one := said("address")):
            address = _address(*one)
        if wait is None and (one := said("wait")):
            wait = _seconds(*one)
        if address is not None:
            if memory_limit is not None:
                raise invalid_argument(
                    f"memory_limit is for the devices of this machine, and the address {address!r} names a cluster; "
                    "leave it out, and start the cluster's workers with --memory-limit"
                )
            if self.memory_wait is not None:
                raise invalid_argument(
                    f"memory_wait is for the devices of this machine, and the address {address!r} names a cluster; "
                    "leave it out: how long a cluster waits for memory is its controller's to say"
                )
            platform = self.platform
            if platform is None and (one := said("platform")):
                platform = _platform(*one)
            return Settings(address, devices, None, wait, None, self.elastic, platform)
        if self.elastic:
            raise invalid_argument(
                "elastic is for clusters, which workers can join, and no address names one; leave it out, or give the "
                "address of a controller"
            )
        if self.platform is not None:
            raise invalid_argument(
                "platform is for clusters, which may have devices of several, and no address names one; leave it out: "
                "`pathways doctor` says how the devices of this machine are chosen"
            )
        if devices is None and (one := said("devices")):
            devices = _count(_number(one[0]), one[1])
        if memory_limit is None and (one := said("memory-limit")):
            memory_limit = parse_bytes(*one)
        return Settings(None, devices, memory_limit, wait, self.memory_wait)

    @property
    def beside(self) -> tuple[str, ...]:
        """The platforms of the devices beside JAX's default ones."""
        return tuple((self.platform or "").split(",")[1:])

    @property
    def remote(self) -> bool:
        """Whether the devices belong to other processes, which may start later."""
        return self.address is not None and self.address.startswith(("tcp:", "unix:"))


def _variables() -> Callable[[str], tuple[str, str] | None]:
    """Returns a lookup of options in the variables, or else in the file: the text, and its name for errors."""
    try:
        file = config.read()
    except config.ConfigError as error:
        raise PathwaysError(*error.args) from None

    def said(option: str) -> tuple[str, str] | None:
        name = "PATHWAYS_" + option.upper().replace("-", "_")
        if text := os.environ.get(name, "").strip():
            return text, name
        line = file.get(option)
        return (line.text, f"{line.where}: {option}") if line and line.text else None

    return said


def _address(value: Any, name: str) -> str:
    """Checks the form of an address."""
    text = value.strip() if isinstance(value, str) else ""
    scheme, _, rest = text.partition(":")
    found = re.fullmatch(SCHEMES[scheme], rest) if scheme in SCHEMES else None
    numbers = {part: int(number or 1) for part, number in found.groupdict().items()} if found else {}
    if (
        found is None
        or not 1 <= numbers.get("port", 1) <= MAX_PORT
        or not 1 <= numbers.get("workers", 1) * numbers.get("devices", 1) <= MAX_DEVICES
    ):
        raise invalid_argument(
            f"{name} is {value!r}, which is not the address of a cluster; expected tcp:HOST:PORT or unix:/PATH of a "
            "controller (`pathways address` prints that of a cluster of this machine), or local:WxD for W workers "
            f"with D devices each in this process, at most {MAX_DEVICES} devices"
        )
    return text


def _number(text: str) -> int | str:
    return int(text) if re.fullmatch(r"[+-]?[0-9]+", text) else text


def _whole(value: Any) -> int:
    """Returns the value as an int, or 0, which no option accepts, if it is not a whole number."""
    try:
        return 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return 0


# The same as for `pathways worker --memory-limit`, which reads the same variable and file.
BYTES = {
    **{"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12},
    **{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40},
}


def parse_bytes(value: Any, name: str) -> int:
    """Parses bytes: a whole number, or a text such as "4GiB"; a bare number means bytes."""
    text = re.fullmatch(r"\s*([0-9]+)(\.[0-9]+)?\s*([KMGT]?i?B?)\s*", value) if isinstance(value, str) else None
    if text and (unit := BYTES.get(text[3])):
        limit = int(text[1]) * unit + int(float(text[2] or 0) * unit)
    else:
        limit = _whole(value)
    if not 1 <= limit < 1 << 62:
        raise invalid_argument(f"{name} is {value!r}; expected bytes per device, such as 4 * 2**30 or '4GiB'")
    return limit


def _count(value: Any, name: str) -> int:
    count = _whole(value)
    if not 1 <= count <= MAX_DEVICES:
        raise invalid_argument(f"{name} is {value!r}; expected a whole number of devices from 1 to {MAX_DEVICES}")
    return count


def _elastic(value: Any, devices: Any) -> bool:
    if value is not None and not isinstance(value, bool):
        raise invalid_argument(f"elastic is {value!r}; expected True or False")
    if value and devices is None:
        raise invalid_argument("elastic=True needs devices=: how many the script is to have when all have come")
    return bool(value)


def _platform(value: Any, name: str) -> str:
    text = value.replace(" ", "") if isinstance(value, str) else ""
    if not re.fullmatch(r"[a-z0-9_]+(,[a-z0-9_]+)*", text):
        raise invalid_argument(
            f"{name} is {value!r}; expected a name, such as 'cpu', 'cuda' or 'tpu', or several, such as 'cuda,cpu': "
            "`pathways status` shows those of the cluster's islands"
        )
    return text


UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "": 1.0}


def _seconds(value: Any, name: str) -> float:
    """Parses seconds: a number, or a text as on the command line, such as "1m30s"; a bare number means seconds."""
    if isinstance(value, str) and re.fullmatch(r"(?:[0-9.]+(?:h|ms|m|s))+|[0-9.]+", value):
        parts = re.findall(r"([0-9.]+)(h|ms|m|s|)", value)
    else:
        parts = [(value, "")] if isinstance(value, int | float) and not isinstance(value, bool) else []
    try:
        seconds = sum(float(number) * UNITS[unit] for number, unit in parts)
    except ValueError:  # two dots
        parts = []
    if not parts or not 0 <= seconds < 1 << 32:
        raise invalid_argument(f"{name} is {value!r}; expected seconds, such as 60, and 0 for none")
    return seconds


def stock_cpu_devices(jax: Any) -> int:
    """Returns how many CPU devices JAX would show without Pathways: jax_num_cpu_devices, else XLA_FLAGS, else 1."""
    configured = jax.config.jax_num_cpu_devices
    if configured > 0:
        return configured
    flags = re.findall(r"--xla_force_host_platform_device_count=([0-9]+)", os.environ.get("XLA_FLAGS", ""))
    return max(int(flags[-1]), 1) if flags else 1
