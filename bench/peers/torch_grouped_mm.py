#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times a whole MoE layer in bf16 by PyTorch's grouped GEMM beside ours, on one GPU.

    torch_grouped_mm.py [--command PATH] [--preset P] [--tokens T,...] [--seconds X] [--least RATIO] [--json FILE]

Theirs: softmax top-k, sort by expert, gather, torch._grouped_mm with gate and up joined, SiLU, torch._grouped_mm,
weighting, index-add; with weights of both layouts, [in, out] and [out, in], of which the faster one counts. Both sides:
random weights that rotate over copies larger than the L2 cache, fresh logits for each call of a CUDA graph, medians of
the graph's time over its calls. Ours is `switchyard bench layer`. It needs PyTorch and the command, and no compiler:
libraries in `lib` beside the command are found, as scripts/gpu_pass.sh packs them.
Exit status: 0 ok, 1 a result is wrong, a program failed or a ratio is below --least, 2 bad usage, 3 there is no GPU or no
PyTorch that has _grouped_mm.
"""
import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

CACHES = 32  # together the layers hold so many L2 caches


class Layer:
    """Weights of one layer, [experts, in, out]; in memory [in, out], or [out, in] where `turned`."""

    def __init__(self, torch, shape, turned):
        hidden, inter, experts, self.top_k = shape

        def make(count, rows, cols):
            size = (count, cols, rows) if turned else (count, rows, cols)
            made = torch.randn(*size, device="cuda", dtype=torch.bfloat16).mul_(rows ** -0.5)
            return made.transpose(1, 2) if turned else made

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


def time_layouts(torch, shape, tokens, seconds):
    """Of each number of tokens the better layout's median µs, and its name."""
    best = {}
    for turned in (False, True):
        layers = [Layer(torch, shape, turned)]
        l2 = torch.cuda.get_device_properties(0).L2_cache_size
        while len(layers) < 2 or len(layers) * layers[0].bytes() < CACHES * l2:
            layers.append(Layer(torch, shape, turned))
        for t in tokens:
            us = time_theirs(torch, layers, shape, t, seconds)
            if t not in best or us < best[t][0]:
                best[t] = (us, "[out, in]" if turned else "[in, out]")
        del layers
        torch.cuda.empty_cache()
    return best


def ask(command, *words):
    """What our command prints as JSON, whatever its verdict."""
    env = dict(os.environ)
    libraries = pathlib.Path(command).resolve().parent / "lib"
    if libraries.is_dir():
        env["LD_LIBRARY_PATH"] = f"{libraries}:{env.get('LD_LIBRARY_PATH', '')}"
    words = [str(command), *map(str, words), "--json"]
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, env=env)
    except OSError as error:
        raise RuntimeError(f"{command} cannot be run: {error.strerror}") from error
    if not done.stdout:
        raise RuntimeError(f"{' '.join(words)} exited with {done.returncode}")
    return json.loads(done.stdout)


def shape_of(command, preset):
    """hidden, inter, experts and top_k."""
    problem = ask(command, "explain", "--preset", preset)["problem"]
    return [problem["hidden"], problem["inter"], problem["routing"]["num_experts"], problem["routing"]["top_k"]]


def time_ours(command, preset, tokens, seconds):
    """Our result, and the median µs of each number of tokens."""
    result = ask(command, "bench", "layer", "--device", "cuda", "--preset", preset, "--format", "bf16", "--tokens",
                 ",".join(map(str, tokens)), "--state", "fresh", "--seconds", seconds, "--without-shared")
    rows = result["measurements"]
    if not all(r["ok"] for r in rows):
        raise RuntimeError("our result is wrong")
    return result, {r["tokens"]: r["fresh"]["time_us"]["p50"] for r in rows}


def table(rows, least):
    """The lines of the table and, below it, whether every size keeps `least`."""
    lines = [f"{'T':>6} {'torch us':>10} {'ours us':>10} {'ratio':>6}  their layout"]
    lines += [f"{r['tokens']:>6} {r['torch_us']:>10.1f} {r['ours_us']:>10.1f} {r['ratio']:>6.2f}  {r['torch_layout']}"
              for r in rows]
    short = [r for r in rows if not r["ratio"] >= least]
    if least > 0:
        below = ", ".join(f"{r['ratio']:.2f} at {r['tokens']}" for r in short)
        lines.append(f"ratios below {least:g}: {below}" if short else f"every ratio is {least:g} or more")
    return lines, not short


def arguments(words):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--command", default="build/cuda/switchyard")
    parser.add_argument("--preset", default="qwen3-30b-a3b")
    parser.add_argument("--tokens", default="1,8,64,512,4096,8192")
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--least", type=float, default=0.0, help="exit with 1 where theirs over ours is less")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args(words)
    counts = args.tokens.split(",")
    if not all(c.isdecimal() and int(c) > 0 for c in counts):
        parser.error(f"--tokens {args.tokens} is no list of whole numbers above 0")
    if args.seconds <= 0:
        parser.error("--seconds is above 0")
    args.tokens = [int(c) for c in counts]
    return args


def gpu_torch():
    """PyTorch with a GPU and the grouped GEMM. Raises ImportError."""
    import torch
    if not torch.cuda.is_available():
        raise ImportError("PyTorch sees no GPU")
    if not hasattr(torch, "_grouped_mm"):
        raise ImportError(f"PyTorch {torch.__version__} has no _grouped_mm")
    return torch


def main():
    args = arguments(sys.argv[1:])
    shape = shape_of(args.command, args.preset)
    try:
        torch = gpu_torch()
    except ImportError as error:
        print(f"torch_grouped_mm.py: {error}", file=sys.stderr)
        return 3
    theirs = time_layouts(torch, shape, args.tokens, args.seconds)
    result, ours = time_ours(args.command, args.preset, args.tokens, args.seconds)
    rows = [{"tokens": t, "torch_us": theirs[t][0], "torch_layout": theirs[t][1], "ours_us": ours[t],
             "ratio": theirs[t][0] / ours[t]} for t in args.tokens]
    lines, kept = table(rows, args.least)
    print(f"{args.preset} bf16 on {torch.cuda.get_device_name(0)}, PyTorch {torch.__version__}, p50 of a call in a graph; "
          "ratio above 1: ours is faster")
    print("\n".join(lines))
    if args.json:
        keep = {k: result[k] for k in ("version", "commit", "machine", "fingerprint")}
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        args.json.write_text(json.dumps(
            {**keep, "schema": "switchyard.bench.torch.1", "date": now, "preset": args.preset,
             "torch": torch.__version__, "gpu": torch.cuda.get_device_name(0), "rows": rows}, indent=2) + "\n")
    return 0 if kept else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RuntimeError as error:
        print(f"torch_grouped_mm.py: {error}", file=sys.stderr)
        sys.exit(1)
