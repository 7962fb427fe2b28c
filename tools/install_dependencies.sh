#!/bin/sh
# Installs the distribution's packages that building and testing need (Debian 12). Prints the command before it runs it.
# --lint adds clang-format and clang-tidy, --fuzz adds clang.
set -eu
packages="g++ cmake ninja-build pkg-config libfmt-dev nlohmann-json3-dev libcli11-dev libpcre2-dev libutf8proc-dev
libxxhash-dev libeigen3-dev libgtest-dev libgmock-dev binutils python3-pip python3-venv"
for argument in "$@"; do
  case "$argument" in
    --lint) packages="$packages clang-format clang-tidy" ;;
    --fuzz) packages="$packages clang" ;;
    *) echo "unknown argument $argument" >&2; exit 2 ;;
  esac
done
command -v dpkg-query >/dev/null || { echo "This is no Debian system; install by hand:" $packages >&2; exit 5; }
missing=""
for package in $packages; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q '^install ok installed$' || missing="$missing $package"
done
[ -z "$missing" ] && exit 0
if [ "$(id -u)" = 0 ]; then as_root=""; else as_root="sudo"; fi
echo "$as_root apt-get install -y --no-install-recommends$missing"
$as_root apt-get update -q
DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -q --no-install-recommends $missing
