#!/usr/bin/env bash
# What ./dev package does: package.sh BUILD_FOLDER CUDA PYTHON... A tarball, a .deb and wheels in dist/, of one build. The
# same sources, compiler and libraries give the same bytes in any folder. ./dev has installed what this needs; each PYTHON is that
# of an environment with the tools; CUDA is ON or OFF.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=$1 cuda=$2
shift 2
PATH=$(realpath "$(dirname "$1")"):$PATH  # auditwheel works elsewhere, and calls patchelf
version=$(sed -n 's/^project(inlay VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
machine=$(uname -m)
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
mkdir -p dist

# ---- wheels: one module for all Pythons from 3.12 on, one for each that is older ---------------------------------------

export CXX=${CXX:-c++}  # as ./dev build calls it, and not as Python's own compiler: so ccache knows what that has compiled
for python in "$@"; do
  wheels=$build/wheels
  rm -rf "$wheels" && mkdir -p "$wheels/bare"
  # The long name of the option: Debian 12's pip has no -C.
  "$python" -m pip wheel . --quiet --no-deps --no-build-isolation --wheel-dir "$wheels/bare" \
    "--config-settings=build-dir=$build" "--config-settings=cmake.define.INLAY_CUDA=$cuda"
  # Libraries come along, under names of their own; MPI is the system's, where it has one.
  "$python" -m auditwheel repair --exclude 'libmpi.so*' --wheel-dir dist "$wheels"/bare/*.whl >"$wheels/log" 2>&1 ||
    { cat "$wheels/log" >&2; exit 1; }
done

# ---- the tree of the tarball and the .deb ----------------------------------------------------------------------------

tree=$build/tree
rm -rf "$tree"
cmake --install "$build" --prefix "$tree" --component program --strip >/dev/null
program=$tree/bin/inlay
# Everything but libc comes along; a package manager brings libstdc++ and libgcc itself.
base='^(linux-vdso|ld-linux|libc|libm|libdl|librt|libpthread)[.-]'
mkdir -p "$tree/lib/inlay" "$tree/share/bash-completion/completions"
ldd "$program" | awk '$3 ~ /^\// {print $1, $3}' | grep -vE "$base" | while read -r name file; do
  install -m 644 "$file" "$tree/lib/inlay/$name"
  strip --strip-unneeded "$tree/lib/inlay/$name"
  patchelf --set-rpath '$ORIGIN' "$tree/lib/inlay/$name"
  # Each with its licence.
  owner=$(dpkg-query -S "$(readlink -f "$file")" 2>/dev/null | cut -d: -f1 | head -1 || true)
  if [[ -f /usr/share/doc/${owner:-none}/copyright ]]; then
    install -D -m 644 "/usr/share/doc/$owner/copyright" "$tree/share/doc/inlay/$owner.copyright"
  fi
done
patchelf --set-rpath '$ORIGIN/../lib/inlay' "$program"
"$program" completion bash >"$tree/share/bash-completion/completions/inlay"
find "$tree" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +

name=inlay-$version-$machine
tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --transform "s,^\.,$name," \
  -C "$tree" -cf - . | gzip -n9 >"dist/$name.tar.gz"

# ---- the .deb --------------------------------------------------------------------------------------------------------

if command -v dpkg-deb >/dev/null; then
  deb=$build/deb
  rm -rf "$deb"
  mkdir -p "$deb/DEBIAN" "$deb/usr"
  cp -a "$tree/." "$deb/usr/"
  rm -f "$deb"/usr/lib/inlay/lib{stdc++,gcc_s}.so.* "$deb"/usr/share/doc/inlay/lib{stdc++6,gcc-s1}.copyright
  libc=$(ldd --version | sed -n '1s/.* //p')
  cat >"$deb/DEBIAN/control" <<END
Package: inlay
Version: $version
Architecture: $(dpkg --print-architecture)
Maintainer: The Inlay developers
Depends: libc6 (>= $libc), libstdc++6, libgcc-s1
Recommends: openmpi-bin
Section: science
Priority: optional
Description: fine-tunes language models natively
 Trains Hugging Face checkpoints without Python: new skills are set into the
 weights and the old ones stay in place.
END
  find "$deb" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
  dpkg-deb --root-owner-group -Zxz --build "$deb" "dist/inlay_${version}_$(dpkg --print-architecture).deb" >/dev/null
fi
(cd dist && sha256sum inlay* >SHA256SUMS)
