#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times a whole MoE layer in bf16 by PyTorch's grouped GEMM beside ours, on one GPU.

    torch_grouped_mm.py [--command PATH] [--preset P] [--tokens T,...] [--seconds X] [--json FILE]

Theirs: softmax top-k, sort by expert, gather, torch._grouped_mm with gate and up joined, SiLU, torch._grouped_mm,
weighting, index-add. Both sides: random weights that rotate over copies larger than the L2 cache, fresh logits for
each call of a CUDA graph, medians of the graph's time over its calls. Ours is `switchyard bench layer`.
Exit status: 0 ok, 1 a result is wrong or a program failed, 2 bad usage, 3 there is no GPU or no PyTorch.
"""
import argparse
import json
import statistics
import subprocess
import sys
import time

SHAPES = {"qwen3-30b-a3b": (2048, 768, 128, 8), "gpt-oss-120b": (2880, 2880, 128, 4),
          "mixtral-8x7b": (4096, 14336, 8, 2), "deepseek-v3": (7168, 2048, 256, 8)}
CACHES = 32  # together the layers hold so many L2 caches


class Layer:
    """Weights of one layer, [experts, in, out]."""

    def __init__(self, torch, shape):
        hidden, inter, experts, self.top_k = shape
        make = lambda *size: torch.randn(*size, device="cuda", dtype=torch.bfloat16).mul_(size[1] ** -0.5)
        self.up, self.down, self.inter = make(experts, hidden, 2 * inter), make(experts, inter, hidden), inter
        self.experts = experts

    def bytes(self):
        return 2 * (self.up.numel() + self.down.numel())

    def forward(self, torch, x, logits):
        weights, ids = torch.topk(torch.softmax(logits, -1), self.top_k, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        chosen, order = ids.flatten().sort(stable=True)
        token = order // self.top_k
        ends = torch.searchsorted(chosen, torch.arange(self.experts, device="cuda"), right=True).to(torch.int32)
        both = torch._grouped_mm(x[token], self.up, offs=ends)
        middle = torch.nn.functional.silu(both[:, :self.inter]) * both[:, self.inter:]
        rows = torch._grouped_mm(middle, self.down, offs=ends)
        out = torch.zeros(x.shape, device="cuda", dtype=torch.float32)
        out.index_add_(0, token, rows.float() * weights.flatten()[order, None])
        return out.to(torch.bfloat16)

    def right(self, torch, x, logits):
        """Plain loops on the first tokens, in fp32."""
        got, x = self.forward(torch, x, logits)[:4].float(), x[:4].float()
        weights, ids = torch.topk(torch.softmax(logits[:4], -1), self.top_k, -1)
        want = torch.zeros_like(got)
        for t in range(len(x)):
            for w, e in zip(weights[t] / weights[t].sum(), ids[t]):
                both = x[t] @ self.up[e].float()
                want[t] += w * ((torch.nn.functional.silu(both[:self.inter]) * both[self.inter:]) @ self.down[e].float())
        return ((got - want).norm() / want.norm()).item() < 2e-2


def time_theirs(torch, layers, shape, tokens, seconds):
    """Median µs of a call in a graph."""
    calls = max(24 if tokens <= 64 else 4, len(layers))
    x = torch.randn(tokens, shape[0], device="cuda", dtype=torch.bfloat16)
    logits = [torch.randn(tokens, shape[2], device="cuda") for _ in range(calls)]
    if not layers[0].right(torch, x, logits[0]):
        raise RuntimeError("torch._grouped_mm gives another result than plain loops")
    run = lambda: [layers[i % len(layers)].forward(torch, x, logits[i]) for i in range(calls)]
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = run()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times, begin = [], time.time()
    while len(times) < 5 or (time.time() - begin < seconds and len(times) < 200):
        for values in logits:
            values.normal_()
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1000 * start.elapsed_time(end) / calls)
    del kept
    return statistics.median(times)


def time_ours(command, preset, tokens, seconds):
    args = [command, "bench", "layer", "--device", "cuda", "--preset", preset, "--format", "bf16", "--tokens",
            ",".join(map(str, tokens)), "--state", "fresh", "--seconds", str(seconds), "--without-shared", "--json"]
    done = subprocess.run(args, stdout=subprocess.PIPE, text=True)
    if not done.stdout:
        raise RuntimeError(f"{' '.join(args)} exited with {done.returncode}")
    rows = json.loads(done.stdout)["measurements"]
    if not all(r["ok"] for r in rows):
        raise RuntimeError("our result is wrong")
    return {r["tokens"]: r["fresh"]["time_us"]["p50"] for r in rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--command", default="build/cuda/switchyard")
    parser.add_argument("--preset", default="qwen3-30b-a3b", choices=sorted(SHAPES))
    parser.add_argument("--tokens", default="1,8,64,512,4096,8192")
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--json")
    args = parser.parse_args()
    try:
        import torch
        if not torch.cuda.is_available():
            raise ImportError("PyTorch sees no GPU")
    except ImportError as error:
        print(f"torch_grouped_mm.py: {error}", file=sys.stderr)
        return 3
    shape, tokens = SHAPES[args.preset], [int(t) for t in args.tokens.split(",")]
    layers = [Layer(torch, shape)]
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    while len(layers) < 2 or len(layers) * layers[0].bytes() < CACHES * l2:
        layers.append(Layer(torch, shape))
    theirs = {t: time_theirs(torch, layers, shape, t, args.seconds) for t in tokens}
    del layers
    torch.cuda.empty_cache()
    ours = time_ours(args.command, args.preset, tokens, args.seconds)
    print(f"{args.preset} bf16 on {torch.cuda.get_device_name(0)}, PyTorch {torch.__version__}, p50 of a call in a graph")
    print(f"{'T':>6} {'torch us':>10} {'ours us':>10} {'ratio':>6}")
    for t in tokens:
        print(f"{t:>6} {theirs[t]:>10.1f} {ours[t]:>10.1f} {theirs[t] / ours[t]:>6.2f}")
    if args.json:
        rows = [{"tokens": t, "torch_us": theirs[t], "ours_us": ours[t]} for t in tokens]
        with open(args.json, "w") as file:
            json.dump({"preset": args.preset, "torch": torch.__version__, "rows": rows}, file, indent=1)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RuntimeError as error:
        print(f"torch_grouped_mm.py: {error}", file=sys.stderr)
        sys.exit(1)
