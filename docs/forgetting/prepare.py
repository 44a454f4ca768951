"""Makes the documents of docs/forgetting.md: pip install tokenizers, then

    python docs/forgetting/prepare.py SHARED_DATA OUT

SHARED_DATA holds models/stories15M and datasets/{gsm8k,tinyshakespeare,tinystories,trace}. Writes JSONL of input_ids
(a document a line, at most 256 tokens, the model's longest) to OUT: NAME.train.jsonl and NAME.eval.jsonl for the tasks,
stories.jsonl for what the model already knows.
"""

import json
import pathlib
import sys

from tokenizers import Tokenizer

LONGEST, BOS, EOS = 256, 1, 2


def write(path, documents):
    with open(path, "w") as out:
        for ids in documents:
            if len(ids) >= 8:
                out.write(json.dumps({"input_ids": ids[:LONGEST]}) + "\n")


def main():
    data, out = map(pathlib.Path, sys.argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(data / "models/stories15M/tokenizer.json"))

    def encode(text):
        return [BOS] + tokenizer.encode(text, add_special_tokens=False).ids + [EOS]

    datasets = data / "datasets"
    for split, name in (("train", "train"), ("test", "eval")):
        rows = [json.loads(line) for line in open(datasets / f"gsm8k/{split}.jsonl")]
        write(out / f"gsm8k.{name}.jsonl", (encode(row["question"] + "\n" + row["answer"]) for row in rows))
        rows = json.load(open(datasets / f"trace/ScienceQA/{split}.json"))
        write(out / f"scienceqa.{name}.jsonl", (encode(row["prompt"] + " " + row["answer"]) for row in rows))

    def pieces(path):
        """Running text in pieces of whole lines."""
        result, piece = [], []
        for line in open(path):
            ids = tokenizer.encode(line, add_special_tokens=False).ids
            if len(piece) + len(ids) > LONGEST - 1:
                result.append([BOS] + piece)
                piece = []
            piece += ids
        return result

    plays = pieces(datasets / "tinyshakespeare/input.txt")
    cut = len(plays) * 9 // 10
    write(out / "shakespeare.train.jsonl", plays[:cut])
    write(out / "shakespeare.eval.jsonl", plays[cut:])
    write(out / "stories.jsonl", pieces(datasets / "tinystories/tinystories_197k.txt"))


if __name__ == "__main__":
    main()
