"""The parts of a page of measurements: paragraphs, tables, and what became of targets."""

import textwrap


def paragraph(text):
    return [*textwrap.wrap(text, 120, break_on_hyphens=False), ""]


def table(heads, rows):
    lines = ["| " + " | ".join(map(str, heads)) + " |", "|" + "---|" * len(heads)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def ratio(got):
    """How many times as fast ours is: the median of the rounds, and the lowest and highest."""
    return f"{got['median']:.2f} ({got['low']:.2f} – {got['high']:.2f})" if got else "–"


def rate(got):
    return f"{got['median']:,.0f}" if got else "–"


def verdict(text, reached, why=""):
    """A target and what became of it; where it is missed, what is known of the distance."""
    return f"- {text}: {became(reached)}{'' if reached or not why else '. ' + why}"


def undecided(text, why):
    """A target of which what was measured does not say whether it is reached, and why."""
    return f"- {text}: **not decided**: {why}"


def became(reached):
    return f"**{'reached' if reached else 'missed'}**"


def on(workers):
    return f"{workers} worker{'s' * (workers > 1)}"


def milliseconds(cost):
    """Reads Go's way to write a duration."""
    for unit, factor in (("µs", 1e-3), ("ms", 1), ("s", 1e3)):
        if cost.endswith(unit):
            return float(cost.removesuffix(unit)) * factor
    raise ValueError(cost)
