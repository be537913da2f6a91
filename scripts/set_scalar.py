#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Overwrites one fp32 scalar of a safetensors file, to see what a checkpoint with that value does.

Usage: set_scalar.py FILE TENSOR VALUE
"""
import json
import struct
import sys


def main():
    path, name, value = sys.argv[1], sys.argv[2], float(sys.argv[3])
    with open(path, "r+b") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        tensor = json.loads(file.read(size)).get(name)
        if not tensor or tensor["dtype"] != "F32" or tensor["data_offsets"][1] - tensor["data_offsets"][0] != 4:
            raise SystemExit(f"{path}: {name} is no fp32 scalar of this file")
        file.seek(8 + size + tensor["data_offsets"][0])
        file.write(struct.pack("<f", value))


if __name__ == "__main__":
    main()
