#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The test pass of a GPU, on a machine that has the CUDA driver and no compiler.
#
#     gpu_pass.sh pack BUILD OUT.tar.xz    where the binaries are built: the command, one test driver, the fixtures
#     gpu_pass.sh run [PART...]            where they were unpacked; parts that passed before are not run again
#     gpu_pass.sh parts                    names the parts
#
# Each part takes at most eight minutes; what it printed stands in logs/PART.log, and done/PART says that it passed. Parts may run at once, each by a
# call of its own: most of their time is the host's. Those of ranks have deadlines and run alone.
# Exit status: 0 all asked parts passed, 1 one failed, 2 a usage mistake, 3 there is no GPU.
set -u
PARTS="units layers ranks extremes processes fixtures memcheck racecheck memcheck_ranks racecheck_ranks"
LIMIT=480
SMALL='*TheTrace*:*AGraphReplays*:GemmPrefillCuda*:QuantizeCuda*:RouteCuda.ZeroExperts*:ExpertPackerCuda.PackersWork*:FewTokensCuda.EveryWayQ*:FinalizeCuda.EveryField*'  # for the sanitizers
# Ranks that share a GPU wait for one another in kernels: a tool that lets one kernel run at a time ends them by their deadline, and says so.
RANKS='DeviceAllReduceTest.UnalignedTensors*:Formats/DeviceRanks.ResidualAndNorm*/bf16:Formats/DeviceRanks.StridesSkips*/nvfp4'

fail() { echo "gpu_pass.sh: $1" >&2; exit "${2:-1}"; }

pack() {
  local build=$1 out=$2 root folder size
  root=$(cd "$(dirname "$0")/.." && pwd)
  [ -x "$build/switchyard" ] && [ -x "$build/tests/switchyard_gpu_tests" ] ||
    fail "$build lacks switchyard or tests/switchyard_gpu_tests; build both targets there" 2
  folder=$(mktemp -d) && mkdir "$folder/gpu_pass" "$folder/gpu_pass/lib" || exit 1
  trap "rm -rf '$folder'" EXIT
  strip -o "$folder/gpu_pass/switchyard" "$build/switchyard" &&
    strip -o "$folder/gpu_pass/switchyard_gpu_tests" "$build/tests/switchyard_gpu_tests" ||
    fail "strip could not copy the binaries to $folder"
  ldd "$build/switchyard" "$build/tests/switchyard_gpu_tests" |
    awk '$3 ~ /lib(fmt|gtest|gmock)/ {print $3}' | sort -u | xargs -r cp -L -t "$folder/gpu_pass/lib"
  cp -r "$root/tests/data" "$folder/gpu_pass/data" && cp "$root/scripts/gpu_pass.sh" "$folder/gpu_pass/" ||
    fail "the fixtures could not be copied to $folder"
  size=$(($(stat -c %s "$folder/gpu_pass/switchyard") + $(stat -c %s "$folder/gpu_pass/switchyard_gpu_tests")))
  [ "$size" -le $((40 << 20)) ] || fail "the binaries are $size bytes, the limit is 40 MiB"
  tar -C "$folder" -cJf "$out" gpu_pass || fail "tar could not write $out"
  echo "$out: binaries of $((size >> 20)) MiB"
}

tests() { ./switchyard_gpu_tests --gtest_brief=1 "$@"; }

# Two processes must give the same bits; 40 repeats in one are a unit test.
processes() {
  local i
  for i in 1 2; do
    tests --gtest_filter='DeviceExtremes.DigestOfOutputs' --gtest_output="json:digest$i.json" || return 1
    grep -o '"digest": "[0-9a-f]*"' "digest$i.json" > "digest$i.txt" || return 1
  done
  cmp digest1.txt digest2.txt && cat digest1.txt
}

# Every fixture against its recorded output, then the oracle, also with unquantised activations, and with all that verify tells beside. What a leaf does not serve is a failure that says so.
fixtures() {
  local folder mode io failed=0 count=0
  for folder in data/*/; do
    [ -f "$folder/config.json" ] || continue
    for mode in io format bf16 details; do
      io=$folder/moe_io.safetensors
      [ "$mode" != io ] || [ -f "$io" ] || continue
      case $mode in
        io) set -- --io "$io" ;;
        details) set -- --per-expert --dump-stages stages.safetensors ;;
        *) set -- --activations "$mode" ;;
      esac
      count=$((count + 1))
      timeout 120 ./switchyard verify "$folder" --device cuda "$@" > verify.log 2>&1 ||
        { failed=$((failed + 1)); echo "FAILED $folder $*: $(tail -1 verify.log)"; continue; }
      echo "ok     $folder $*"
    done
  done
  echo "$((count - failed)) of $count verified"
  [ "$count" -gt 0 ] && [ "$failed" = 0 ]
}

# A pattern that names no test would pass for ever.
sanitized() {
  local pattern
  command -v compute-sanitizer > /dev/null || { echo "compute-sanitizer is not installed"; return 1; }
  for pattern in ${2//:/ }; do
    ./switchyard_gpu_tests --gtest_list_tests --gtest_filter="$pattern" | grep -q '^  ' ||
      { echo "no test is called $pattern"; return 1; }
  done
  compute-sanitizer --tool "$1" --error-exitcode 1 ./switchyard_gpu_tests --gtest_brief=1 --gtest_filter="$2"
}

part() {
  case $1 in
    units) tests --gtest_filter='-*Device*:AfterAFault*' ;;
    layers) tests --gtest_filter='*Device*:AfterAFault*:-DeviceExtremes*:*DeviceRank*:*DeviceAllReduce*' ;;
    ranks) tests --gtest_filter='*DeviceRank*:*DeviceAllReduce*' ;;
    extremes) tests --gtest_filter='DeviceExtremes*' ;;
    processes) processes ;;
    fixtures) fixtures ;;
    memcheck) sanitized memcheck "$SMALL" ;;
    racecheck) sanitized racecheck "$SMALL" ;;
    memcheck_ranks) sanitized memcheck "$RANKS" ;;
    racecheck_ranks) sanitized racecheck "$RANKS" ;;
    *) fail "there is no part '$1'; parts: $PARTS" 2 ;;
  esac
}

run() {
  local name status failed=0 begin stamp
  cd "$(dirname "$0")" || exit 1
  export LD_LIBRARY_PATH="$PWD/lib:${LD_LIBRARY_PATH:-}"
  ./switchyard doctor --device cuda > /dev/null 2>&1
  [ $? != 3 ] || fail "there is no GPU, or this build has no CUDA twins" 3
  mkdir -p logs done
  # What passed with other binaries has not passed with these.
  stamp=$(cat switchyard switchyard_gpu_tests "$(basename "$0")" | sha256sum)
  for name in ${*:-$PARTS}; do
    [[ " $PARTS " = *" $name "* ]] || fail "there is no part '$name'; parts: $PARTS" 2
    [ "$(cat "done/$name" 2> /dev/null)" = "$stamp" ] && { echo "$name: passed before"; continue; }
    begin=$SECONDS
    timeout "$LIMIT" "$BASH" "./$(basename "$0")" part "$name" > "logs/$name.log" 2>&1
    status=$?
    [ "$status" = 0 ] && echo "$stamp" > "done/$name" || failed=1
    echo "$name: $([ "$status" = 0 ] && echo passed || echo "FAILED with $status, see logs/$name.log") in $((SECONDS - begin)) s"
  done
  return "$failed"
}

case ${1:-} in
  pack) [ $# = 3 ] || fail "pack needs BUILD and OUT.tar.xz" 2; pack "$2" "$3" ;;
  run) shift; run "$@" ;;
  part) part "$2" ;;
  parts) echo "$PARTS" ;;
  *) fail "usage: gpu_pass.sh pack BUILD OUT.tar.xz | run [PART...] | parts" 2 ;;
esac
