"""Formats numbers for people, and reads names as they write them."""

from __future__ import annotations

import re


def count(number: int, noun: str) -> str:
    """Formats a number with its noun: "1 device", "2 devices", "0 processes"."""
    many = noun + ("es" if noun.endswith(("s", "sh", "ch")) else "s")
    return f"{number} {noun if number == 1 else many}"


def size(n: float) -> str:
    """Formats bytes, such as "1.5 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024:
            return f"{n:.4g} {unit}"
        n /= 1024
    return f"{n:.4g} TiB"


def duration(seconds: float) -> str:
    """Formats a time with three digits, such as "48.3 ms" or "1464 s"."""
    if seconds >= 1:
        return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:.0f} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def plain(name: str) -> str:
    """Returns a name without case and punctuation, so that 1F1B, ZB-H1 and zb_h1 are found."""
    return re.sub(r"[^a-z0-9]", "", name.lower())
