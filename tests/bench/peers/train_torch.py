"""The training steps of train.py's decoder and encoder-decoder in PyTorch with gloo, a process a participant.

python train_torch.py ddp N         starts N ranks and answers for them: the time is that of the slowest
python train_torch.py fsdp N        the same with weights, gradients and moments cut over the ranks
python train_torch.py ddp N rank port

The models have the shapes of the examples' ones, weight by weight. Tokens are random: their values take no time.
"""

import math
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import sides  # noqa: E402

stream = sides.answers()


def rank(way, n, rank, port):
    try:
        import torch
        import torch.distributed as dist
        from torch import nn
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.nn import functional as F
        from torch.nn.parallel import DistributedDataParallel
    except ImportError as error:
        sides.leave_out(stream, f"PyTorch cannot be imported: {error}")
        return
    torch.set_num_threads(max(1, os.cpu_count() // n))
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(n)}
    dist.init_process_group("gloo")

    class Norm(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.gain = nn.Parameter(torch.ones(width))

        def forward(self, x):
            return F.rms_norm(x, self.gain.shape, self.gain, 1e-6)

    def rotate(x):
        frequency = 10_000.0 ** -(torch.arange(x.shape[-1] // 2) / (x.shape[-1] // 2))
        angle = torch.arange(x.shape[-2])[:, None] * frequency
        a, b = x.chunk(2, -1)
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)

    class Attention(nn.Module):
        def __init__(self, width, heads, rotary):
            super().__init__()
            self.heads, self.rotary, self.norm = heads, rotary, Norm(width)
            self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

        def forward(self, x, memory=None, bias=None):
            y = self.norm(x)
            memory = y if memory is None else memory
            query, key, value = (
                layer(of).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                for layer, of in ((self.query, y), (self.key, memory), (self.value, memory))
            )
            if self.rotary:
                query, key = rotate(query), rotate(key)
            y = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, is_causal=self.rotary)
            return x + self.out(y.transpose(1, 2).flatten(-2))

    class Gated(nn.Module):
        def __init__(self, width, times, activation):
            super().__init__()
            self.norm, self.activation = Norm(width), activation
            self.gate, self.up = (nn.Linear(width, times * width, bias=False) for _ in range(2))
            self.down = nn.Linear(times * width, width, bias=False)

        def forward(self, x):
            y = self.norm(x)
            return x + self.down(self.activation(self.gate(y)) * self.up(y))

    class Layer(nn.Module):
        """A layer of the decoder-only model, or of either side of the other one."""

        def __init__(self, width, heads, *, rotary=False, crossed=False):
            super().__init__()
            self.attention = Attention(width, heads, rotary)
            self.cross = Attention(width, heads, False) if crossed else None
            self.gated = Gated(width, 3, F.silu) if rotary else Gated(width, 2, F.gelu)

        def forward(self, x, bias=None, memory=None):
            x = self.attention(x, bias=bias)
            return self.gated(self.cross(x, memory) if self.cross else x)

    class Decoder(nn.Module):
        def __init__(self, width, heads, layers, length):
            super().__init__()
            self.embed = nn.Embedding(256, width)
            self.layers = nn.ModuleList(Layer(width, heads, rotary=True) for _ in range(layers))
            self.norm, self.unembed = Norm(width), nn.Linear(width, 256, bias=False)

        def forward(self, tokens):
            x = self.embed(tokens[:, :-1])
            for layer in self.layers:
                x = layer(x)
            return F.cross_entropy(self.unembed(self.norm(x)).flatten(0, 1), tokens[:, 1:].flatten())

    BUCKETS, FARTHEST = 32, 128

    class Distance(nn.Module):
        def __init__(self, heads, causal):
            super().__init__()
            self.causal, self.table = causal, nn.Parameter(torch.randn(BUCKETS, heads))

        def forward(self, length):
            place = torch.arange(length)
            distance = place[None, :] - place[:, None]
            buckets = BUCKETS if self.causal else BUCKETS // 2
            offset = 0 if self.causal else buckets * (distance > 0)
            distance = (-distance).clamp(min=0) if self.causal else distance.abs()
            exact = buckets // 2
            far = (distance.clamp(min=1) / exact).log() / math.log(FARTHEST / exact) * (buckets - exact)
            bucket = torch.where(distance < exact, distance, (exact + far.int()).clamp(max=buckets - 1))
            bias = self.table[bucket + offset].movedim(-1, 0)
            return torch.where(place[:, None] >= place, bias, -1e9) if self.causal else bias

    class T5(nn.Module):
        def __init__(self, width, heads, layers, length):
            super().__init__()
            self.embed = nn.Embedding(256 + length // 16 + 1, width)
            self.distances = nn.ModuleList(Distance(heads, causal) for causal in (False, True))
            self.encoder = nn.ModuleList(Layer(width, heads) for _ in range(layers))
            self.decoder = nn.ModuleList(Layer(width, heads, crossed=True) for _ in range(layers))
            self.norms = nn.ModuleList(Norm(width) for _ in range(2))

        def forward(self, inputs, targets):
            memory, bias = self.embed(inputs), self.distances[0](inputs.shape[1])
            for layer in self.encoder:
                memory = layer(memory, bias)
            memory = self.norms[0](memory)
            start = torch.full_like(targets[:, :1], self.embed.num_embeddings - 1)
            x, bias = self.embed(torch.cat([start, targets[:, :-1]], 1)), self.distances[1](targets.shape[1])
            for layer in self.decoder:
                x = layer(x, bias, memory)
            logits = F.linear(self.norms[1](x), self.embed.weight) / math.sqrt(x.shape[-1])
            return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def examples(model, batch, length):
        if model == "decoder":
            return (torch.randint(256, (batch, length + 1)),)
        return tuple(torch.randint(256, (batch, length // 16 * each)) for each in (13, 5))

    def made(name, sizes):
        model = {"decoder": Decoder, "t5": T5}[name](**sizes)
        if way == "ddp":
            model = DistributedDataParallel(model)
        else:
            mesh = init_device_mesh("cpu", (n,))
            for module in list(model.modules()):
                if isinstance(module, Layer):
                    fully_shard(module, mesh=mesh)
            fully_shard(model, mesh=mesh)
        return model, torch.optim.Adam(model.parameters(), 3e-3, (0.9, 0.98))

    def answer(model, batch, calls, **sizes):
        tokens = examples(model, batch, sizes["length"])
        try:
            model, optimizer = made(model, sizes)

            def step():
                loss = model(*tokens)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                return loss.item()

            first = step()
        except (RuntimeError, NotImplementedError) as error:  # gloo of some versions lacks some
            return {"left out": str(error).splitlines()[0]}
        dist.barrier()
        start = time.perf_counter()
        for _ in range(calls):
            step()
        return {"seconds": time.perf_counter() - start, "first": first}

    sides.serve(stream, answer, {"version": torch.__version__})
    dist.destroy_process_group()


if len(sys.argv) == 3:
    sides.serve_ranks(stream, int(sys.argv[2]), sys.executable, __file__, *sys.argv[1:])
else:
    rank(sys.argv[1], *map(int, sys.argv[2:]))
