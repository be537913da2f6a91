#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Adds a format to a copy of the tree, builds it, and counts what had to be touched: one new file in
# leaves/ and one new line in leaves.def, after which `switchyard explain` must choose the new leaf.
# Usage: add_dummy_format.sh [TREE]   (default: the repository that this script stands in)
set -eu
name=dummy_format
model=w4a16_mxfp4 # the leaf whose file the new one is written after
leaves=src/switchyard/leaves
id=switchyard.cpu.fused_moe.$name

root=$(cd "${1:-$(dirname "$0")/../..}" && pwd)
copy=$(mktemp -d "${TMPDIR:-/tmp}/dummy_format.XXXXXX")
trap 'rm -rf "$copy"' EXIT INT TERM
fail() { echo "add_dummy_format: $*" >&2; exit 1; }
in_copy() { git -C "$copy" -c user.name=house -c user.email=house@localhost "$@"; }

(cd "$root" && git ls-files -co --exclude-standard -- src cli cmake CMakeLists.txt CMakePresets.json |
  tar -cf - -T -) | tar -xf - -C "$copy"
in_copy init -q
in_copy add -A
in_copy commit -q -m before

sed "s/$model/$name/g" "$copy/$leaves/$model.cc" > "$copy/$leaves/$name.cc"
echo "SWITCHYARD_LEAF($name)" >> "$copy/$leaves/leaves.def"
in_copy add -A

# --numstat: lines added, lines removed, file.
touched=$(in_copy diff --cached --numstat)
[ "$(echo "$touched" | wc -l)" -eq 2 ] || fail "more than two files were touched: $touched"
echo "$touched" | grep -q "^1	0	$leaves/leaves.def\$" || fail "leaves.def changed by more than one line: $touched"
in_copy diff --cached --name-status | grep -q "^A	$leaves/$name.cc\$" || fail "the leaf is no new file"

log=$copy/build.log
(cd "$copy" && cmake --preset cpu -DSWITCHYARD_TESTS=OFF &&
  cmake --build --preset cpu -j 2 --target switchyard_cli) > "$log" 2>&1 ||
  { tail -n 30 "$log" >&2; fail "the tree with the new leaf does not build"; }

report=$("$copy/build/cpu/switchyard" explain --preset tiny --format $name --device cpu --json) ||
  fail "explain found no leaf for $name: $report"
echo "$report" | python3 -c '
import json, sys
winner = json.dumps(json.load(sys.stdin)["winner"])
sys.exit(0 if sys.argv[1] in winner else f"explain chose {winner}")' "$id" || fail "explain did not choose $id"
echo "one new file and one new line: $id is built, registered and chosen"
