#!/usr/bin/env bash
# Makes a small Llama from nothing, teaches it to spell words backwards on the CPU, and shows it before and after.
# Called by ./dev demo. Everything goes into build/demo.
set -euo pipefail
cd "$(dirname "$0")/.."
inlay=build/inlay
out=build/demo
rm -rf "$out"
mkdir -p "$out"

# A task without a download: "reverse abcde = edcba", one document a line, only the answer is learned. The words of the
# test file do not occur in training. Byte b is token b; 257 ends the answer.
make_data() { # seed, documents, file
  awk -v seed="$1" -v count="$2" '
    BEGIN {
      for (i = 0; i < 256; ++i) code[sprintf("%c", i)] = i
      srand(seed)
      for (n = 0; n < count; ++n) {
        word = ""; back = ""
        len = 4 + int(rand() * 5)
        for (i = 0; i < len; ++i) { c = sprintf("%c", 97 + int(rand() * 26)); word = word c; back = c back }
        prompt = "reverse " word " = "
        text = prompt back
        ids = ""; labels = ""
        for (i = 1; i <= length(text); ++i) {
          sep = i > 1 ? "," : ""
          ids = ids sep code[substr(text, i, 1)]
          labels = labels sep (i > length(prompt) ? code[substr(text, i, 1)] : -100)
        }
        print "{\"input_ids\":[" ids ",257],\"labels\":[" labels ",257]}"
      }
    }' > "$3"
}
make_data 1 40000 "$out/train.jsonl"
make_data 2 200 "$out/test.jsonl"

"$inlay" init --preset tiny "$out/base"
cat > "$out/run.yaml" <<YAML
base_model: $out/base
output_dir: $out/run
datasets: [{path: $out/train.jsonl}]
test_datasets: [{path: $out/test.jsonl}]
device: cpu
sequence_len: 64
micro_batch_size: 64
max_steps: 600
learning_rate: 2.0e-3
warmup_steps: 30
weight_decay: 0.01
eval_steps: 150
logging_steps: 50
YAML

ask() {
  "$inlay" generate "$1" --device cpu --max-new-tokens 12 --prompt "reverse inlay = " --prompt "reverse python = " \
    --prompt "reverse cuda = " --prompt "reverse tensor = " | sed 's/[^[:print:]]/?/g; s/^/  /'
}
echo; echo "before:"; ask "$out/base"
echo; "$inlay" train "$out/run.yaml"
echo; echo "after:"; ask "$out/run"
echo; echo "on words it has never seen:"
"$inlay" eval "$out/base" --data "$out/test.jsonl" --device cpu | sed 's/^/  base:    /'
"$inlay" eval "$out/run" --data "$out/test.jsonl" --device cpu | sed 's/^/  trained: /'
echo; echo "the run is in $out/run: a Hugging Face model, metrics.jsonl, summary.json"
