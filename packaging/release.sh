#!/usr/bin/env bash
# What ./dev release does, after its checks of the tree: nothing is uploaded; it says what is left to do.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
fail() { echo "release: $*" >&2; exit 1; }
version=$(sed -n 's/^project(inlay VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || fail "CMakeLists.txt: the version is '$version', expected three numbers"
[[ -z $(git status --porcelain) ]] || fail "the tree has changes that are not committed"
grep -qF "## [$version]" CHANGELOG.md || fail "CHANGELOG.md has no section [$version]: what is in [Unreleased] becomes it"
git rev-parse -q --verify "refs/tags/v$version" >/dev/null && fail "the tag v$version is there already"
echo "$version"
