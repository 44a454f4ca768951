#!/usr/bin/env bash
# Cross-compiles for ARM64 and runs the tests of the CPU under qemu-user. Needs Debian or Ubuntu with g++-aarch64-linux-gnu,
# qemu-user-static and mmdebstrap; nothing is installed beside the machine's own libraries, for those of ARM64 are unpacked
# into build-arm64/root. It takes about an hour on two cores, so it is not part of ./dev test.
#   tests/arm64.sh [GTEST_FILTER]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=build-arm64
root=$PWD/$build/root
libraries=$root/usr/lib/aarch64-linux-gnu
for tool in aarch64-linux-gnu-g++ qemu-aarch64-static mmdebstrap cmake ninja; do
  command -v "$tool" >/dev/null || { echo "arm64: there is no $tool; apt-get install" \
    "g++-aarch64-linux-gnu qemu-user-static mmdebstrap cmake ninja-build" >&2; exit 1; }
done

if [[ ! -f $build/root.done ]]; then
  rm -rf "$root"
  mkdir -p "$build"
  # The packages of ./dev without its tools and without MPI, unpacked only: nothing of ARM64 has to run for that.
  mapfile -t wanted < <(sed -n '/^readonly packages=(/,/)$/p' dev | grep -oE 'lib[a-z0-9+-]+-dev|zlib1g-dev|nlohmann-json3-dev' |
    grep -v openmpi)
  mmdebstrap --quiet --arch=arm64 --variant=extract \
    --include="libgomp1,libc6-dev,libstdc++-12-dev,$(IFS=,; echo "${wanted[*]}")" bookworm "$root" \
    "deb http://deb.debian.org/debian bookworm main"
  # What the packages' scripts would have linked.
  ln -sf openblas-pthread/libopenblas.so "$libraries/libopenblas.so"
  for name in libopenblas.so.0 libblas.so.3 liblapack.so.3; do ln -sf "openblas-pthread/$name" "$libraries/$name"; done
  touch "$build/root.done"
fi

export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
# The compiler finds libstdc++ and libc in its own folders, which are those of the same release.
[[ -f $build/build.ninja ]] || cmake -S . -B "$build" -G Ninja -DINLAY_CUDA=OFF -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
  -DCMAKE_LIBRARY_ARCHITECTURE=aarch64-linux-gnu -DCMAKE_SYSROOT="$root" -DINLAY_OBJCOPY=/usr/bin/aarch64-linux-gnu-objcopy \
  -DOPENBLAS_INCLUDE_DIR="$root/usr/include/aarch64-linux-gnu/openblas-pthread" \
  -DCMAKE_FIND_ROOT_PATH_MODE_PROGRAM=NEVER -DCMAKE_FIND_ROOT_PATH_MODE_LIBRARY=ONLY \
  -DCMAKE_FIND_ROOT_PATH_MODE_INCLUDE=ONLY -DCMAKE_FIND_ROOT_PATH_MODE_PACKAGE=ONLY \
  -DCMAKE_CROSSCOMPILING_EMULATOR="/usr/bin/qemu-aarch64-static;-L;$root"
cmake --build "$build" --target inlay_tests --parallel "${JOBS:-$(nproc)}"

# Tests that start a program are left out: that would need binfmt_misc. So are those of terminals, which qemu does not emulate.
filter=${1:-Core*:*/Core*:Backend*:*/Backend*:Ops*:*/Ops*:Weights*:*/Weights*:Io*:*/Io*:Model*:*/Model*:Objective*:*/Objective*:Jinja*:Data*:*/Data*:Osft*:*/Osft*:Adapter*:*/Adapter*:Options*:-CoreTerminal*:BackendThreads.ANumber*:BackendIsa.WhatTheMachine*:OptionsAddedTokens*}
OMP_NUM_THREADS=${OMP_NUM_THREADS:-2} exec qemu-aarch64-static -L "$root" "$build/inlay_tests" --gtest_filter="$filter" --gtest_brief=1
