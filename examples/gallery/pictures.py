"""Pictures of what ran when, for the scripts of this folder."""

import os
import pathlib
import sys

try:
    import matplotlib
except ImportError:  # the scripts do all but their pictures
    matplotlib = None

COLORS = matplotlib.colormaps["tab20"].colors if matplotlib else ()


def pyplot():
    """Returns matplotlib's pyplot. Without matplotlib, says so and ends the script: only its picture is left to do."""
    if matplotlib is None:
        print("no picture is drawn, since matplotlib is not installed; run: pip install matplotlib")
        sys.exit()
    if "DISPLAY" not in os.environ:
        matplotlib.use("agg")
    from matplotlib import pyplot as plt

    return plt


def folder():
    """Returns the directory of pictures: out/, or the one that GALLERY_OUT names."""
    path = pathlib.Path(os.environ.get("GALLERY_OUT", "out"))
    path.mkdir(parents=True, exist_ok=True)
    return path


def timeline(axes, bars, rows):
    """Draws what ran when: time to the right, a row per device.

    Args:
      axes: of matplotlib.
      bars: (device, begin, seconds, color), or with a name to write on it at the end.
      rows: device → what its row is called.
    """
    order = {device: -i for i, device in enumerate(rows)}
    thin = max(begin + seconds for _, begin, seconds, *_ in bars) / 300  # an edge would cover these
    for device, begin, seconds, color, *name in bars:
        axes.broken_barh(
            [(begin * 1e3, seconds * 1e3)],
            (order[device] - 0.4, 0.8),
            facecolor=color,
            edgecolor="white" if seconds > thin else color,
            linewidth=0.5,
        )
        for text in name:
            middle = (begin + seconds / 2) * 1e3, order[device]
            axes.text(*middle, text, color="white", ha="center", va="center", fontweight="bold")
    axes.set_yticks(list(order.values()), list(rows.values()))
    axes.set_ylim(min(order.values()) - 0.6, 0.6)
    axes.set_xlabel("milliseconds (shorter is better)")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False)
