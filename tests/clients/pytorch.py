"""Trains a small network with PyTorch/XLA on the devices of Pathways, which it knows as a PJRT plugin alone.

The examples are cut over all devices, and each has a copy of the parameters. Every step's loss is compared with the
same steps in plain PyTorch. The arguments are the path of libpathways.so and how many devices of this process to use;
0 for a cluster's, of PATHWAYS_ADDRESS.
"""

import os
import sys

os.environ["PJRT_DEVICE"] = "PATHWAYS"

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch_xla  # noqa: E402
import torch_xla.distributed.spmd as spmd  # noqa: E402
import torch_xla.runtime  # noqa: E402
from torch_xla.experimental import plugins  # noqa: E402

STEPS = 60


class Pathways(plugins.DevicePlugin):
    def library_path(self):
        return sys.argv[1]

    def client_create_options(self):
        devices = int(sys.argv[2])
        return {"devices": devices} if devices else {}

    def physical_chip_count(self):
        return 1


plugins.register_plugin("PATHWAYS", Pathways())
torch_xla.runtime.use_spmd()
DEVICES = torch_xla.runtime.global_runtime_device_count()


def train(to, cut, step_ends):
    """Returns each step's loss."""
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    y = torch.sin(x.sum(1, keepdim=True))
    net = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).to(to)
    x, y = cut(x.to(to)), cut(y.to(to))
    adam = torch.optim.Adam(net.parameters(), lr=1e-2)
    losses = []
    for _ in range(STEPS):
        adam.zero_grad()
        loss = ((net(x) - y) ** 2).mean()
        loss.backward()
        adam.step()
        step_ends()
        losses.append(loss.detach())
    return [float(loss) for loss in losses]


def cut(x):
    spmd.mark_sharding(x, spmd.Mesh(np.arange(DEVICES), (DEVICES,), ("data",)), ("data", None))
    return x


want = train("cpu", lambda x: x, lambda: None)
got = train(torch_xla.device(), cut, torch_xla.sync)
for step, (ours, theirs) in enumerate(zip(got, want, strict=True)):
    assert abs(ours - theirs) <= 1e-4 * theirs + 1e-6, f"step {step}: the loss is {ours}, and {theirs} in plain PyTorch"
print(f"ok: {DEVICES} devices, loss {got[0]:.4f} at first, {got[-1]:.4f} after {STEPS} steps")
