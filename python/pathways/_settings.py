"""What a user asked for: the arguments of init() and the PATHWAYS_* variables, checked."""

from __future__ import annotations

import operator
import os
import re
from dataclasses import dataclass
from typing import Any

from pathways._errors import PathwaysError

MAX_DEVICES = 4096
OPTIONS = ("address", "devices", "memory_limit")


@dataclass(frozen=True)
class Settings:
    """Checked settings. None means that nothing was said."""

    address: str | None = None
    devices: int | None = None
    memory_limit: int | None = None  # bytes a device

    @classmethod
    def of_arguments(cls, address: Any, devices: Any, memory_limit: Any, unknown: dict[str, Any]) -> Settings:
        """Checks the arguments of init(). Raises PathwaysError INVALID_ARGUMENT."""
        if unknown:
            names = ", ".join(repr(name) for name in sorted(unknown))
            raise PathwaysError(
                "INVALID_ARGUMENT",
                f"pathways.init() has no option {names}; its options are {', '.join(OPTIONS)}",
            )
        if address is not None and (not isinstance(address, str) or not address.strip()):
            raise PathwaysError(
                "INVALID_ARGUMENT",
                f"address is {address!r}; expected a text that names a controller, or None for devices of this machine",
            )
        return cls(
            address,
            None if devices is None else _count(devices, "devices"),
            None if memory_limit is None else _bytes(memory_limit, "memory_limit"),
        )

    def with_environment(self) -> Settings:
        """Fills what was not said from PATHWAYS_ADDRESS, _DEVICES and _MEMORY_LIMIT. Raises PathwaysError."""
        address, devices, memory_limit = self.address, self.devices, self.memory_limit
        if address is None:
            address = os.environ.get("PATHWAYS_ADDRESS", "").strip() or None
        if devices is None and (text := os.environ.get("PATHWAYS_DEVICES", "").strip()):
            devices = _count(_number(text), "PATHWAYS_DEVICES")
        if memory_limit is None and (text := os.environ.get("PATHWAYS_MEMORY_LIMIT", "").strip()):
            memory_limit = _bytes(_number(text), "PATHWAYS_MEMORY_LIMIT")
        if address is not None:
            # What PATHWAYS_DEVICES and _MEMORY_LIMIT say is of this machine; a cluster's workers say what theirs have.
            devices, memory_limit = self.devices, self.memory_limit
            if devices is not None or memory_limit is not None:
                raise PathwaysError(
                    "INVALID_ARGUMENT",
                    f"devices and memory_limit are for the devices of this machine, and the address {address!r} names "
                    "a cluster; leave them out, and give --devices and --memory-limit to its workers",
                )
        return Settings(address, devices, memory_limit)


def _number(text: str) -> int | str:
    return int(text) if re.fullmatch(r"[+-]?[0-9]+", text) else text


def _whole(value: Any) -> int:
    """The value as an int; 0, which no option takes, for what is none."""
    try:
        return 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return 0


def _bytes(value: Any, name: str) -> int:
    limit = _whole(value)
    if not 1 <= limit < 1 << 62:
        raise PathwaysError("INVALID_ARGUMENT", f"{name} is {value!r}; expected a whole number of bytes a device")
    return limit


def _count(value: Any, name: str) -> int:
    count = _whole(value)
    if not 1 <= count <= MAX_DEVICES:
        raise PathwaysError(
            "INVALID_ARGUMENT", f"{name} is {value!r}; expected a whole number of devices from 1 to {MAX_DEVICES}"
        )
    return count


def stock_cpu_devices(jax: Any) -> int:
    """How many CPU devices JAX without Pathways would show: jax_num_cpu_devices, else XLA_FLAGS, else 1."""
    configured = jax.config.jax_num_cpu_devices
    if configured > 0:
        return configured
    flags = re.findall(r"--xla_force_host_platform_device_count=([0-9]+)", os.environ.get("XLA_FLAGS", ""))
    return max(int(flags[-1]), 1) if flags else 1
