#!/bin/sh
# A pretrained model on real word problems: a cold start on worked traces, then ten steps of reinforcement learning.
# Takes about an hour on two CPU cores; started again, it goes on where it was.
#
#   sh scripts/smollm2_svamp.sh svamp.jsonl [OUTPUT]
set -eu

[ $# -ge 1 ] || { echo "usage: sh scripts/smollm2_svamp.sh svamp.jsonl [OUTPUT]" >&2; exit 2; }
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
python=${RETOOL_VENV:-$root/.venv}/bin/python
data=$1
output=${2:-outputs/smollm2_svamp}

"$python" -m retool.sft model=smollm2_135m data=svamp "data.path=$data" hydra.run.dir="$output/sft"
"$python" -m retool.train experiment=smollm2_svamp "data.path=$data" model.init_from="$output/sft" max_steps=10 \
    hydra.run.dir="$output/train"
