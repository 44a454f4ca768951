#!/usr/bin/env bash
# Every test that needs a GPU, several at a time on one: a single test leaves most of it idle. Says which failed, and exits with 1
# then. With memcheck or racecheck the tests of the ops run under compute-sanitizer instead, which takes about fifty times as long.
# SHARDS and FILTER are variables; logs stay in FOLDER.
#   [BINARY=build/inlay_tests] [SHARDS=8] [FILTER=...] [LIMIT=seconds] tests/gpu.sh FOLDER [memcheck|racecheck]
set -uo pipefail
folder=${1:?a folder for the logs} tool=${2:-}
binary=${BINARY:-build/inlay_tests} shards=${SHARDS:-8} limit=${LIMIT:-540}
filter=${FILTER:-'*cuda*:*Cuda*:*ParallelNccl*:*ParallelSimulated*'}
run=()
case $tool in
  '') ;;
  memcheck|racecheck)
    filter=${FILTER:-'*/Ops*cuda*'}
    run=(compute-sanitizer --tool "$tool" --error-exitcode 9 --kernel-name kns=inlay) ;;
  *) echo "gpu.sh: memcheck or racecheck, not '$tool'" >&2; exit 2 ;;
esac
mkdir -p "$folder"
# What is decomposed on the host takes every core that it sees: with as many shards, minutes where seconds would do.
threads=$(($(nproc) / shards))
export OMP_NUM_THREADS=$((threads > 1 ? threads : 1))
export INLAY_TEST_GPU=1 GTEST_TOTAL_SHARDS=$shards
for ((shard = 0; shard < shards; ++shard)); do
  GTEST_SHARD_INDEX=$shard timeout "$limit" "${run[@]}" "$binary" "--gtest_filter=$filter" >"$folder/$shard.log" 2>&1 &
done
status=0
for job in $(jobs -p); do wait "$job" || status=1; done

count() { cat "$folder"/[0-9]*.log | grep -cE "$1"; }
for ((shard = 0; shard < shards; ++shard)); do
  grep -qE '^\[==========\].* ran\.' "$folder/$shard.log" ||
    echo "shard $shard did not finish: $(grep -E '^\[ RUN' "$folder/$shard.log" | tail -1)"
done
[[ -z $tool ]] || grep -hE '^========= (ERROR SUMMARY|RACECHECK SUMMARY)' "$folder"/[0-9]*.log | sort | uniq -c
grep -hE '^\[  FAILED  \] [^ ]+ \(|^\[  FAILED  \] [^ ]+, where.*\(' "$folder"/[0-9]*.log
echo "$(count '^\[       OK \]') passed, $(count '^\[  FAILED  \] .* \([0-9]+ ms\)') failed, $(count '^\[  SKIPPED \] .* \([0-9]+ ms\)') skipped"
exit "$status"
