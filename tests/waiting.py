"""Waits for a condition that another thread or process makes true.

Nothing here is a measure of time: the bound is far above what a busy machine takes, so that only a hang reaches it.
"""

import time

HANG_SECONDS = 120


def comes(yes, pause: float = 0.02) -> bool:
    """Waits until yes() is true, with a pause in seconds between calls; returns whether it became true."""
    end = time.monotonic() + HANG_SECONDS
    while not yes():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
    return True
