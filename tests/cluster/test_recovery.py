"""The script of docs/guides/recovery.md goes on after the loss of a worker and of the whole cluster."""

import signal

import fresh
import numpy as np
import pages
from processes import Cluster, command


def test_the_script_goes_on_after_losses():
    (script,) = [script for place, script in pages.scripts().items() if place.startswith("docs/guides/recovery.md:")]
    # It says how far it is, and goes on when told to.
    steps = 'print("step", done, flush=True)'
    assert script.count(steps) == 1
    script = script.replace(steps, steps + "\n            input()")
    with Cluster(workers=2, devices=2, restart=True) as cluster:
        process = fresh.start(script, backend=None, env=cluster.environment())
        written = []

        def on():
            fresh.tell(process)

        def until(line):
            """Lets it go on up to a line, behind which it stands."""
            for said in process.stdout:
                written.append(said)
                if said == line:
                    return
                on()
            raise AssertionError(f"it ended without {line!r}: {written}\n{process.stderr.read()}")

        until("step 3\n")
        cluster.signal("worker-1", signal.SIGKILL)
        on()
        until("lost after step 3\n")
        until("step 5\n")
        place = ("--dir", str(cluster.dir))
        command("down", *place)
        command("up", *place, "--workers", "2", "--devices", "2", env={"PATHWAYS_DEVICES": ""})
        on()
        until("lost after step 5\n")
        done = fresh.finish(process, "\n" * 40)
        want = np.zeros(8, "float32")
        for _ in range(30):
            want = want * np.float32(0.5) + np.float32(1)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == str(want.tolist())
        assert sum(line.startswith("lost") for line in written) == 2
