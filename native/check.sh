#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Digests of every level on this processor, and of aarch64's by a cross compiler and qemu, must be one.
# Needs g++-aarch64-linux-gnu and qemu-user (Debian's names).
set -euo pipefail
cd "$(dirname "$0")"
out=../build/check
mkdir -p "$out"
flags=(-std=c++20 -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math -Wno-psabi)

build() { # compiler, name, then level=flags ...
  local compiler=$1 name=$2 level objects=() defines=()
  shift 2
  for level in "$@"; do
    local id=${level%%=*}
    # shellcheck disable=SC2086
    for source in level quants/*; do
      source=${source%.cpp}
      [[ -f $source.cpp ]] || continue
      $compiler "${flags[@]}" ${level#*=} -DTAEL_LEVEL="$id" -c "$source.cpp" -o "$out/$name-$id-${source##*/}.o"
      objects+=("$out/$name-$id-${source##*/}.o")
    done
    defines+=("-DTAEL_HAVE_${id^^}=1")
  done
  $compiler "${flags[@]}" "${defines[@]}" -static check.cpp dispatch.cpp "${objects[@]}" -o "$out/$name"
}

build "${CXX:-g++}" host baseline= avx2="-mavx2 -mpclmul -mbmi2" \
  avx512="-mavx512f -mavx512bw -mavx512dq -mavx512vl -mvpclmulqdq -mpclmul -mbmi2 -mprefer-vector-width=512"
build "${CROSS_CXX:-aarch64-linux-gnu-g++}" aarch64 baseline= neon="-march=armv8-a+crc"
{ "$out/host"; qemu-aarch64 "$out/aarch64"; } | tee "$out/digests"
[ "$(cut -d' ' -f1 "$out/digests" | sort -u | wc -l)" = 1 ]
