#!/usr/bin/env bash
# Are the packages reproducible? Makes those of the last commit in two clones, which lie in folders with names of different
# lengths, and compares the bytes. Takes two builds without CUDA that share no object file; with CCACHE_DIR set they share those
# of that cache, which is quicker and tries what comes after the compiler. Exits with 1 where they differ.
#   packaging/reproduce.sh [OPTIONS OF ./dev package, such as --jobs 2]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for name in one the-other; do
  git clone --quiet . "$scratch/$name"
  (cd "$scratch/$name" && CCACHE_DIR=${CCACHE_DIR:-$scratch/cache-$name} ./dev package --cpu-only "$@")
done
diff "$scratch/one/dist/SHA256SUMS" "$scratch/the-other/dist/SHA256SUMS" && echo "equal:" && cat "$scratch/one/dist/SHA256SUMS"
