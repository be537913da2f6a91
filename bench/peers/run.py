#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times a peer's CPU kernels beside ours: same machine, same shapes, same threads, cold caches, in turns.

    run.py onednn|ggml [--preset P] [--tokens T,...] [--threads N] [--seconds X] [--json FILE]

onednn is Debian's library, unpacked under build/peers and not installed; its expert matmuls are timed alone, without
activation and weighted sum. ggml is built there from the source distribution of llama-cpp-python on PyPI, for this
CPU; its three mul_mat_id, SwiGLU and weighted sum are timed. Ours is the whole layer from given logits on. Each is run
twice in turns and the better median counts. Exit status: 0 ok, 1 a result is wrong or a program failed, 2 bad usage,
3 the peer cannot be had here.
"""
import argparse
import datetime
import json
import pathlib
import shutil
import subprocess
import sys
import tarfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import tree  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
BUILD = ROOT / "build/peers"
LLAMA = "llama-cpp-python==0.3.36"
# Their type, our format of as many bits.
PAIRS = {"onednn": (("bf16", "bf16"), ("int8", "fp8")),
         "ggml": (("bf16", "bf16"), ("q8_0", "fp8"), ("q4_0", "nvfp4"), ("mxfp4", "w4a16_mxfp4"))}


class NoPeer(Exception):
    """The peer cannot be had here; the text says what failed."""


def must(args, what, cwd=BUILD):
    """Runs a step that fetches or builds."""
    if shutil.which(str(args[0])) is None:
        raise NoPeer(f"{what}: there is no {args[0]} here")
    done = subprocess.run([str(a) for a in args], cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()
        raise NoPeer(f"{what}: {lines[-1].strip()}")


def compile_peer(name, include, libraries, links):
    """Compiles NAME_peer.cc against the peer; its path."""
    program = BUILD / f"{name}_peer"
    must(["g++", "-std=c++20", "-O2", f"-I{ROOT}", *[f"-I{i}" for i in include], HERE / f"{name}_peer.cc", "-o", program,
          f"-L{libraries}", f"-Wl,-rpath,{libraries}", *links, "-lpthread"], f"compiling {name}_peer.cc")
    return program


def get_onednn():
    root = BUILD / "onednn"
    if not (root / "usr/include").is_dir():
        must(["apt-get", "download", "libdnnl-dev", "libdnnl2"], "fetching Debian's oneDNN")
        for package in BUILD.glob("libdnnl*.deb"):
            must(["dpkg", "-x", package, root], f"unpacking {package.name}")
    include = root / "usr/include"
    return compile_peer("onednn", [include, include / "x86_64-linux-gnu"], root / "usr/lib/x86_64-linux-gnu", ["-ldnnl"])


def get_ggml():
    out = BUILD / "ggml"
    source = next(BUILD.glob("llama_cpp_python-*/vendor/llama.cpp/ggml"), None)
    if source is None:
        must([sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary=llama-cpp-python", LLAMA],
             f"fetching {LLAMA}")
        archive = next(BUILD.glob("llama_cpp_python-*.tar.gz"))
        with tarfile.open(archive) as packed:
            packed.extractall(BUILD, [m for m in packed.getmembers() if "/vendor/llama.cpp/ggml/" in m.name])
        source = next(BUILD.glob("llama_cpp_python-*/vendor/llama.cpp/ggml"))
        (source / "ggml.pc.in").touch()  # the source distribution leaves it out, and CMake asks for it
    must(["cmake", "-S", source, "-B", out, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON",
          "-DGGML_OPENMP=OFF", "-DGGML_BUILD_TESTS=OFF", "-DGGML_BUILD_EXAMPLES=OFF", "-DBUILD_SHARED_LIBS=ON"],
         "configuring ggml")
    must(["cmake", "--build", out, "--target", "ggml", "-j", str(tree.jobs())], "building ggml")
    return compile_peer("ggml", [source / "include"], out / "src", ["-lggml", "-lggml-cpu", "-lggml-base"])


PEERS = {"onednn": get_onednn, "ggml": get_ggml}


def run_json(args, what, env=None):
    """Stdout of a program that prints JSON."""
    done = subprocess.run([str(a) for a in args], capture_output=True, text=True, env=env)
    if done.returncode:
        line = (done.stderr.strip() or f"exit {done.returncode}").splitlines()[-1]
        raise SystemExit(f"{what} failed: {line}")
    return json.loads(done.stdout)


def shape_of(preset):
    """hidden, inter, experts and top_k of a preset."""
    problem = run_json([tree.COMMAND, "explain", "--preset", preset, "--json"], "switchyard explain")["problem"]
    return [problem["hidden"], problem["inter"], problem["routing"]["num_experts"], problem["routing"]["top_k"]]


def ours(args, form, tokens):
    return run_json([tree.COMMAND, "bench", "layer", "--preset", args.preset, "--formats", form, "--tokens", tokens,
                     "--threads", args.threads, "--seconds", args.seconds, "--state", "cold", "--json"],
                    "switchyard bench layer")


def compare(args, program, theirs, form, tokens):
    """One row: ours and theirs in turns, twice each; also our last result for its header."""
    rows, results = [], []
    env = {"OMP_NUM_THREADS": str(args.threads), "PATH": "/usr/bin:/bin"}
    for _ in range(2):
        result = ours(args, form, tokens)
        results.append(result)
        rows.append(run_json([program, *shape_of(args.preset), tokens, args.threads, theirs, args.seconds,
                              result["flush_bytes"]], f"{program.name} {theirs}", env))
    cold = min((r["measurements"][0]["cold"]["time_us"] for r in results), key=lambda t: t["p50"])
    peer = min(rows, key=lambda r: r["p50"])
    return {"format": form, "peer_type": theirs, "tokens": int(tokens), "ours_us": cold["p50"], "peer_us": peer["p50"],
            "ours_min_us": cold["min"], "peer_min_us": peer["min"], "ratio": peer["p50"] / cold["p50"],
            "peer_rel_l2": peer["rel_l2"], "peer_note": peer["note"], "peer_version": peer["version"]}, results[-1]


def arguments(words):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peer", choices=sorted(PEERS))
    parser.add_argument("--preset", default="qwen3-30b-a3b")
    parser.add_argument("--tokens", default="1,8,64,512")
    parser.add_argument("--threads", type=int, default=tree.jobs())
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args(words)
    for count in args.tokens.split(","):
        if not count.isdecimal() or int(count) < 1:
            parser.error(f"--tokens has '{count}', which is not a whole number above 0")
    if args.threads < 1 or args.seconds <= 0:
        parser.error("--threads and --seconds are above 0")
    return args


def main():
    args = arguments(sys.argv[1:])
    BUILD.mkdir(parents=True, exist_ok=True)
    tree.build_command()
    try:
        program = PEERS[args.peer]()
    except NoPeer as missing:
        print(f"peer {args.peer} cannot be had here: {missing}", file=sys.stderr)
        return 3
    print(f"{args.preset}, {args.threads} threads, cold; ratio above 1: ours is faster\n"
          f"{'ours':<12} {args.peer:<8} {'tokens':>6} {'ours us':>10} {'theirs us':>10} {'ratio':>6}  note")
    rows, header = [], {}
    for theirs, form in PAIRS[args.peer]:
        for tokens in args.tokens.split(","):
            row, header = compare(args, program, theirs, form, tokens)
            rows.append(row)
            print(f"{form:<12} {theirs:<8} {tokens:>6} {row['ours_us']:>10.0f} {row['peer_us']:>10.0f} "
                  f"{row['ratio']:>6.2f}  {row['peer_version']}, {row['peer_note']}", flush=True)
    if args.json:
        keep = {k: header[k] for k in ("version", "commit", "machine", "fingerprint")}
        args.json.write_text(json.dumps(
            {**keep, "schema": "switchyard.bench.peer.1", "command": " ".join(["bench/peers/run.py", *sys.argv[1:]]),
             "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), "peer": args.peer,
             "preset": args.preset, "threads": args.threads, "rows": rows}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
