"""Collectives of PyTorch with gloo, a process a participant.

python torch_gloo.py N         starts N ranks and answers for them: the time is that of the slowest
python torch_gloo.py N rank port
"""

import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import sides  # noqa: E402

stream = sides.answers()


def rank(n, rank, port):
    try:
        import torch
        import torch.distributed as dist
    except ImportError as error:
        sides.leave_out(stream, f"PyTorch cannot be imported: {error}")
        return
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=n)

    def operation(name, x):
        if name == "Add":
            torch.add(x, 1)
            return
        if name == "AllReduce":
            dist.all_reduce(x)  # in place: it has no other form
            return
        out = torch.empty({"AllGather": x.numel() * n, "AllToAll": x.numel(), "ReduceScatter": x.numel() // n}[name])
        if name == "AllGather":
            dist.all_gather_into_tensor(out, x)
        elif name == "AllToAll":
            dist.all_to_all_single(out, x)
        else:
            dist.reduce_scatter_tensor(out, x)

    def answer(operation_name, size, calls):
        x = torch.ones(size // 4)
        try:
            operation(operation_name, x)
        except RuntimeError as error:  # gloo of some versions lacks some
            return {"left out": str(error).splitlines()[0]}
        dist.barrier()
        start = time.perf_counter()
        for _ in range(calls):
            operation(operation_name, x)
        return {"seconds": time.perf_counter() - start}

    sides.serve(stream, lambda operation, size, calls: answer(operation, size, calls), {"version": torch.__version__})
    dist.destroy_process_group()


if len(sys.argv) == 2:
    sides.serve_ranks(stream, int(sys.argv[1]), sys.executable, __file__, sys.argv[1])
else:
    rank(*map(int, sys.argv[1:]))
