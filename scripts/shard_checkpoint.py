#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Splits a checkpoint of one safetensors file into shards with an index, as large models are published.

Usage: shard_checkpoint.py FROM TO SHARDS
"""
import json
import pathlib
import shutil
import struct
import sys


def read(path):
    """[(name, dtype, shape, bytes)] of a safetensors file."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    body = data[8 + size:]
    return [(name, t["dtype"], t["shape"], body[slice(*t["data_offsets"])])
            for name, t in sorted(header.items()) if name != "__metadata__"]


def write(path, tensors):
    header, at = {}, 0
    for name, dtype, shape, data in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for *_, data in tensors))


def main():
    source, target, shards = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
    target.mkdir(parents=True)
    shutil.copy(source / "config.json", target)
    tensors = read(source / "model.safetensors")
    weight_map = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = tensors[shard::shards]
        write(target / name, part)
        weight_map |= {tensor[0]: name for tensor in part}
    index = {"metadata": {"total_size": sum(len(tensor[3]) for tensor in tensors)}, "weight_map": weight_map}
    (target / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


if __name__ == "__main__":
    main()
