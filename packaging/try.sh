#!/usr/bin/env bash
# Tries what is in dist/ in bare roots of Debian 12 and Ubuntu 24.04: the tarball, the .deb and, with Debian's or Ubuntu's
# Python, the wheel. Says how long each takes from the file to a first answer. Needs root, mmdebstrap and the network.
#   packaging/try.sh MODEL_FOLDER [debian:bookworm ubuntu:noble ...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
model=$(realpath "$1")
shift
roots=("$@")
((${#roots[@]} > 0)) || roots=(debian:bookworm ubuntu:noble)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/inlay-roots
mkdir -p "$cache"

make_root() {  # SYSTEM:SUITE FILE
  local mirror="deb http://deb.debian.org/debian ${1#*:} main" key=/usr/share/keyrings/ubuntu-archive-keyring.gpg
  if [[ $1 == ubuntu:* ]]; then
    local trust="signed-by=$key"
    [[ -f $key ]] || trust=trusted=yes  # Debian 12 has no package of Ubuntu's keys; the root is for this test alone
    mirror="deb [$trust] http://archive.ubuntu.com/ubuntu ${1#*:} main universe"
  fi
  mmdebstrap --variant=minbase --include=apt,python3-venv "${1#*:}" "$2" "$mirror"
}

seconds() { awk "BEGIN {printf \"%.1f\", $(date +%s.%N) - $1}"; }

# try WHAT COMMAND: in the root, with the model at /model and dist/ at /dist.
try() {
  local began
  began=$(date +%s.%N)
  if unshare --mount --pid --fork --mount-proc="$root/proc" chroot "$root" \
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root "${variables[@]}" /bin/sh -ec "$2" >"$root/tmp/log" 2>&1; then
    echo "$system $1: $(seconds "$began") s: $(tail -1 "$root/tmp/log" | cut -c1-80)"
  else
    echo "$system $1: failed"; tail -20 "$root/tmp/log"; failed=1
  fi
}

failed=0
for system in "${roots[@]}"; do
  file=$cache/${system/:/-}.tar
  new=${file%.tar}.new.tar  # mmdebstrap makes a folder of what does not end in .tar
  [[ -f $file ]] || make_root "$system" "$new" >"$file.log" 2>&1 || { cat "$file.log" >&2; exit 1; }
  [[ -f $file ]] || mv "$new" "$file"
  root=$(mktemp -d)
  trap 'rm -rf "$root"' EXIT
  tar -xf "$file" -C "$root" --exclude=./dev
  mkdir -p "$root/dist" "$root/model" "$root/dev" "$root/proc"
  mknod -m 666 "$root/dev/null" c 1 3 && mknod -m 666 "$root/dev/urandom" c 1 9
  cp dist/* "$root/dist/"
  cp -r "$model/." "$root/model/"
  cp /etc/resolv.conf "$root/etc/resolv.conf"
  variables=()
  if [[ -f ${PIP_CERT:-} ]]; then cp "$PIP_CERT" "$root/certificates"; variables=(PIP_CERT=/certificates); fi
  # Each says what it is and what it finds, before it answers.
  first() { echo "$1 --version && $1 doctor && $1 generate /model --prompt 'Once upon a time' --max-new-tokens 8 --quiet"; }
  try tarball "cd /opt && tar -xzf /dist/inlay-*.tar.gz && $(first './inlay-*/bin/inlay')"
  try .deb "apt-get -qq update && apt-get -qq install -y --no-install-recommends /dist/inlay_*.deb && $(first inlay)"
  cp packaging/wheel_here.py "$root/dist/"
  try wheel "python3 -m venv /venv && /venv/bin/pip install --quiet \$(python3 /dist/wheel_here.py /dist) &&
    $(first /venv/bin/inlay) &&
    /venv/bin/python -c 'import inlay; print(inlay.load(\"/model\").generate(\"Once upon a time\", 8))'"
  rm -rf "$root"
  trap - EXIT
done
exit "$failed"
