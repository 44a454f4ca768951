"""Makes tests/golden/token_lengths.json: how long real documents are, in tokens.

    pip install tokenizers
    python tests/golden/make_token_lengths.py TOKENIZER.json alpaca_en_demo.json gsm8k/train.jsonl

Made with Llama 2's tokenizer; every fourth problem of GSM8K, all instructions of LLaMA-Factory's Alpaca sample.
"""

import json
import pathlib
import sys

from tokenizers import Tokenizer

tokenizer_file, alpaca_file, gsm8k_file = sys.argv[1:]
tokenizer = Tokenizer.from_file(tokenizer_file)
alpaca = [f"{row['instruction']}\n{row['input']}\n{row['output']}" for row in json.load(open(alpaca_file))]
rows = [json.loads(line) for line in open(gsm8k_file)]
gsm8k = [f"{row['question']}\n{row['answer']}" for row in rows[::4]]


def lengths(texts):
    return [len(encoding.ids) + 1 for encoding in tokenizer.encode_batch(texts)]  # and the token that ends a text


target = pathlib.Path(__file__).parent / "token_lengths.json"
target.write_text(json.dumps({"alpaca": lengths(alpaca), "gsm8k": lengths(gsm8k)}, separators=(",", ":")) + "\n")
