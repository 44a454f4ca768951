#!/usr/bin/env bash
# A small model learns a cipher from nothing; then it is taught two more, by plain fine-tuning and by OSFT with either
# basis. Shows what each method learned and what it forgot. Called by ./dev demo [SEED]; everything goes into build/demo.
set -euo pipefail
cd "$(dirname "$0")/.."
seed=${1:-1}
[[ $seed =~ ^[0-9]{1,6}$ ]] || { echo "usage: ./dev demo [SEED], a number below 1000000" >&2; exit 2; }
inlay=build/inlay
out=build/demo
rm -rf "$out"
mkdir -p "$out"

heading() { printf '\n== %s\n\n' "$*"; }

heading "1. A model of 0.8 million parameters learns one cipher: every letter becomes the next (hello -> ifmmp)"
# A tenth of the base model's documents is learned whole, so that it can write such lines by itself: that is what OSFT
# observes it on. Of the ciphers that follow, only the answers are learned.
make_data() { # cipher, share of whole documents
  awk -v cipher="$1" -v whole="$2" -v seed="$seed" -v count=20000 -v train="$out/$1-train.jsonl" \
    -v test="$out/$1-test.jsonl" -f demo/cipher.awk
}
make_data next 0.1
make_data mirror 0
make_data previous 0
"$inlay" init --preset tiny --seed "$seed" "$out/random"
cp demo/base.yaml "$out/"
"$inlay" train "$out/base.yaml" --seed "$seed"

heading "2. It is taught two more, one after the other, by three methods"
cat <<'END'
mirror: the alphabet backwards (hello -> svool); previous: the letter before (hello -> gdkkn)
sft is plain fine-tuning; osft-weights is OSFT as published; osft-activations finds what to keep from the model's own
activations. Two learning rates each, so that none is compared at another's best.

END
sed "s/^seeds:.*/seeds: [$seed]/" demo/study.yaml > "$out/study.yaml"
"$inlay" continual "$out/study.yaml" | tee "$out/results.txt"

heading "3. What they answer now, each at its learning rate of lowest new loss (in brackets: wrong)"
# "METHOD RATE", from the lines of the table that end their rate with a star.
best_rates() {
  awk '/^after every task/ { exit } /^[a-z]/ { method = $1 } $0 ~ /e-[0-9]+ \*/ { print method, $(/^[a-z]/ ? 2 : 1) }' \
    "$out/results.txt"
}
names=(base) models=("$out/base")
while read -r method rate; do
  names+=("$method") models+=("$out/study/$method/$rate/seed-$seed/2-previous")
done < <(best_rates)

alphabet=abcdefghijklmnopqrstuvwxyz
words=(hello tensor inlay)
ciphers=(next mirror previous)
marks=('+' '~' '-')
keys=(bcdefghijklmnopqrstuvwxyza zyxwvutsrqponmlkjihgfedcba zabcdefghijklmnopqrstuvwxy)
prompts=() wanted=() labels=()
for c in 0 1 2; do
  for word in "${words[@]}"; do
    prompts+=(--prompt "$word${marks[c]}")
    wanted+=("$(tr "$alphabet" "${keys[c]}" <<< "$word")")
    labels+=("${ciphers[c]} of $word")
  done
done
answers=()
for model in "${models[@]}"; do
  while read -r line; do answers+=("${line#*[+~-]}"); done < <(
    "$inlay" generate "$model" --device cpu --bos --max-new-tokens 8 "${prompts[@]}" | sed 's/[^[:print:]]/?/g')
done
row() { printf '%-18s' "$1"; shift; printf ' %-16s' "$@"; echo; }
row "" right "${names[@]}" | sed 's/ *$//'
for ((i = 0; i < ${#wanted[@]}; ++i)); do
  cells=("${wanted[i]}")
  for ((m = 0; m < ${#models[@]}; ++m)); do
    answer=${answers[m * ${#wanted[@]} + i]}
    if [[ $answer == "${wanted[i]}" ]]; then cells+=("$answer"); else cells+=("($answer)"); fi
  done
  row "${labels[i]}" "${cells[@]}" | sed 's/ *$//'
done

cat <<END

Learning rates, seeds and what to make of it: demo/README.md. The models are in $out/study, ordinary Hugging Face folders.
The report, with the matrices and the trade-off of every method: $PWD/$out/study/report.html
END
