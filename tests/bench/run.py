"""Measures Open Pathways beside stock JAX, and its clusters beside other systems, in turns.

    python tests/bench/run.py [--quick] [--only PART] [--rows tiny,step] [--out out]

PART is embedded, cluster, collectives, training or reshard.

Ratios first; each is taken within a round, and printed as the median over the rounds with the lowest and the highest in
brackets. Writes bench.json and bench.png. README.md says how to read them.
"""

import argparse
import json
import os
import pathlib
import platform
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import cluster  # noqa: E402
import collectives  # noqa: E402
import embedded  # noqa: E402
import reshard  # noqa: E402
import sides  # noqa: E402
import training  # noqa: E402

RESUMED = {"collectives": collectives, "training": training, "reshard": reshard}  # tables of rows that take long


def plot(drawings, path):
    """Draws the parts, each a function of axes and its results, one below the other."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    heights = [0.36 * len(results) + 1.2 for _, results in drawings]
    figure, axes = pyplot.subplots(len(drawings), figsize=(9, sum(heights) + 0.4), height_ratios=heights, squeeze=False)
    for (draw, results), place in zip(drawings, axes[:, 0], strict=True):
        draw(place, results)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds and sizes: some minutes")
    parser.add_argument("--only", choices=("embedded", "cluster", *RESUMED), help="one of the tables")
    parser.add_argument("--rows", default="", help="only rows whose names hold one of these, by commas")
    parser.add_argument(
        "--resume", action="store_true", help=f"of {', '.join(RESUMED)}, only rows that bench.json does not have yet"
    )
    parser.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path("out"), help="folder to write to (default out)"
    )
    said = parser.parse_args()
    wanted = [part for part in said.rows.split(",") if part]

    def chosen(name):
        return not wanted or any(part in name for part in wanted)

    began = time.monotonic()
    import jax

    said.out.mkdir(parents=True, exist_ok=True)
    path = said.out / "bench.json"
    out = json.loads(path.read_text()) if said.resume and path.exists() else {}

    def keep(name):
        def kept(results):
            out[name] = results
            path.write_text(json.dumps(out, indent=1, ensure_ascii=False) + "\n")

        return kept

    out |= {"jax": jax.__version__, "python": platform.python_version(), "cores": os.cpu_count()}
    out["load"] = os.getloadavg()[0]
    print(f"jax {out['jax']}, Python {out['python']}, {out['cores']} cores (load {out['load']:.1f})\n")
    drawings = []
    if said.only in (None, "embedded"):
        out["embedded"] = embedded.run(said.quick, chosen)
        drawings.append((embedded.draw, out["embedded"]["rows"]))
        print()
    if said.only in (None, "cluster"):
        out["cluster"] = cluster.run(said.quick, chosen)
        drawings.append((cluster.draw, out["cluster"]["rows"]))
        print()
    for name, table in RESUMED.items():
        if said.only in (None, name):
            out[name] = table.run(said.quick, chosen, out.get(name, {}), keep(name))
            table.write(out[name]["rows"], said.out)
            print()
    path.write_text(json.dumps(out, indent=1, ensure_ascii=False) + "\n")
    wrote = str(path)
    if drawings := [(draw, results) for draw, results in drawings if results]:
        plot(drawings, said.out / "bench.png")
        wrote += f" and {said.out / 'bench.png'}"
    print(f"\n{time.monotonic() - began:.0f} s; wrote {wrote}")


if __name__ == "__main__":
    sides.run(main)
