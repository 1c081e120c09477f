#!/usr/bin/env bash
# What somebody new sees: a clone of this checkout's HEAD, tested by `make test` with no caches at
# all, neither the checkout's own nor those of pip, Maven, Go and Ivy.
#
#   tests/cold_start.sh FOLDER [VARIABLE=VALUE ...]
#
# FOLDER is made, and holds the clone, an empty home, the output and the times:
#   FOLDER/output, FOLDER/status. Variables are those of `make`, or of the environment:
#   tests/cold_start.sh /tmp/first PYTEST_ADDOPTS=--randomly-seed=1
#   BUSY=2 tests/cold_start.sh /tmp/busy        # beside two busy loops
set -euo pipefail
(($#)) || { sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 2; }
source_folder=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
[[ -z $(ls -A "$folder") ]] || { echo "$folder is not empty" >&2; exit 2; }
git clone -q "$source_folder" "$folder/clone"
mkdir "$folder/home" "$folder/tmp"

busy=()
trap 'if ((${#busy[@]})); then kill "${busy[@]}" 2>/dev/null; fi' EXIT
for ((i = 0; i < ${BUSY:-0}; i++)); do
  while :; do :; done &
  busy+=($!)
done

# Java takes its user's home from the system, not from HOME.
java_home_option="-Duser.home=$folder/home"
status=0
began=$SECONDS
env -u PIP_CACHE_DIR -u UV_CACHE_DIR -u GOPATH -u GOCACHE -u GOMODCACHE -u XDG_CACHE_HOME \
  HOME="$folder/home" TMPDIR="$folder/tmp" GOFLAGS="-modcacherw ${GOFLAGS:-}" \
  MAVEN_OPTS="$java_home_option -Dmaven.repo.local=$folder/home/maven ${MAVEN_OPTS:-}" \
  "$@" make -C "$folder/clone" test >"$folder/output" 2>&1 || status=$?
echo "status $status after $((SECONDS - began)) s" | tee "$folder/status"
tail -n 3 "$folder/output"
exit "$status"
