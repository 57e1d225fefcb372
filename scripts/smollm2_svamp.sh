#!/bin/sh
# A pretrained model on real word problems: a cold start on worked traces of MAWPS and of SVAMP, then twelve steps of
# reinforcement learning on SVAMP. Takes about 45 minutes on two CPU cores; started again, it goes on where it was.
#
#   sh scripts/smollm2_svamp.sh svamp.jsonl mawps.jsonl [OUTPUT]
set -eu

[ $# -ge 2 ] || { echo "usage: sh scripts/smollm2_svamp.sh svamp.jsonl mawps.jsonl [OUTPUT]" >&2; exit 2; }
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
python=${RETOOL_VENV:-$root/.venv}/bin/python
svamp=$1
mawps=$2
output=${3:-outputs/smollm2_svamp}

# The format of the tool and how a word problem becomes code: every trace calls the interpreter.
"$python" -m retool.sft model=smollm2_135m data=mawps "data.path=$mawps" data.holdout=0 sft.tool_share=1.0 sft.epochs=1 \
    model.engine.dtype=bfloat16 hydra.run.dir="$output/sft_mawps"
# The problems to come, some of them answered at once: whether to call the interpreter is for reinforcement to decide.
"$python" -m retool.sft model=smollm2_135m data=svamp "data.path=$svamp" model.init_from="$output/sft_mawps" \
    model.engine.dtype=bfloat16 hydra.run.dir="$output/sft_svamp"
"$python" -m retool.train experiment=smollm2_svamp "data.path=$svamp" model.init_from="$output/sft_svamp" \
    hydra.run.dir="$output/train"
