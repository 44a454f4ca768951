#!/usr/bin/env bash
# How a training step fares where it has less than the machine: on one core, under a quota of one core on a machine that
# shows more, and beside twice as many busy programs as there are cores. Prints milliseconds per step. Quotas need root;
# without it those rows are left out.
#   bench/crowded.sh CONFIG [INLAY]      CONFIG: config.json of a model; INLAY: the program (build/inlay)
set -euo pipefail
config=$1 inlay=${2:-build/inlay}
step() {
  "$@" "$inlay" bench train-step --config "$config" --documents 4 --length 256 --device cpu --dtype fp32 --iterations "${ITERATIONS:-3}" --json |
    sed -n 's/.*"ms": *\([0-9.]*\).*/\1/p' | head -1
}
row() { printf '%-44s %8.0f ms\n' "$1" "$2"; }

cores=$(nproc)
alone=$(step env)
row "alone, $cores cores" "$alone"
core=$(taskset -cp $$ | grep -oE '[0-9]+' | sed -n 2p)
single=$(step taskset -c "$core")
row "alone, one core (taskset)" "$single"

# A group below this shell's own, of either version of control groups.
if [[ -d /sys/fs/cgroup/cpu ]]; then
  group=/sys/fs/cgroup/cpu$(sed -n 's/^[0-9]*:\(.*,\)\?cpu\(,.*\)\?:\(.*\)/\3/p' /proc/self/cgroup | head -1)/inlay-crowded-$$
  limit() { echo 100000 >"$group/cpu.cfs_period_us" && echo 100000 >"$group/cpu.cfs_quota_us"; }
else
  group=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)/inlay-crowded-$$
  limit() { echo "100000 100000" >"$group/cpu.max"; }
fi
busy=()
clean() {
  if ((${#busy[@]} > 0)); then kill "${busy[@]}" 2>/dev/null || true; fi
  if [[ -d $group ]]; then rmdir "$group" 2>/dev/null || true; fi
}
trap clean EXIT
if mkdir "$group" 2>/dev/null && limit 2>/dev/null; then
  within() { bash -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group" "$@"; }
  quota=$(step within)
  row "a quota of one core" "$quota"
  # What a program does that does not look for quotas: it cannot see this one.
  hidden=$(step within unshare --mount bash -c 'mount -t tmpfs none /sys/fs/cgroup && exec "$@"' bash)
  row "the same, not looked at" "$hidden"
fi

for ((i = 0; i < 2 * cores; ++i)); do bash -c 'while :; do :; done' & busy+=($!); done
beside=$(step env)
row "beside $((2 * cores)) busy programs" "$beside"
awk "BEGIN {printf \"that is %.2f x what a fair share, a third of the machine, would take\\n\", $beside / $alone / 3}"
