#!/usr/bin/env python3
"""Runs `inlay bench tokenize` and the tokenizers package on the same documents in turn, and prints one JSON object each:
median milliseconds and megabytes a second, over the rounds, and whether both made as many tokens.

    python bench/compare/tokenization.py --model MODEL_DIR --file TEXT [--threads 1] [--rounds 3] [--inlay build/inlay]
"""
import argparse
import json
import os
import statistics
import subprocess
import time


def documents_of(text, size):
    """As bench/tokenize.cpp cuts them."""
    documents, at = [], 0
    while at < len(text):
        line_end = text.find(b"\n", min(at + size, len(text)))
        end = len(text) if line_end < 0 else line_end + 1
        documents.append(text[at:end].decode(errors="replace"))
        at = end
    return documents


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--file", required=True)
    parser.add_argument("--document-bytes", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--inlay", default="build/inlay")
    args = parser.parse_args()
    os.environ["RAYON_NUM_THREADS"] = str(args.threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if args.threads > 1 else "false"
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(os.path.join(args.model, "tokenizer.json"))
    with open(args.file, "rb") as f:
        text = f.read()
    documents = documents_of(text, args.document_bytes)
    ours, theirs = [], []
    for _ in range(args.rounds):
        command = [args.inlay, "bench", "tokenize", "--model", args.model, "--file", args.file, "--json",
                   "--document-bytes", str(args.document_bytes), "--threads", str(args.threads), "--iterations", str(args.iterations)]
        ours.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        for i in range(args.iterations):
            start = time.perf_counter()
            encoded = tokenizer.encode_batch_fast(documents, add_special_tokens=False)
            if i > 0:
                theirs.append(1000 * (time.perf_counter() - start))
    tokens = sum(len(e.ids) for e in encoded)
    ms = statistics.median(r["ms"] for r in ours)
    print(json.dumps({"peer": "inlay", "ms": ms, "mb_per_s": len(text) / ms / 1000, "threads": args.threads,
                      "tokens": ours[0]["tokens"], "same_tokens": tokens == ours[0]["tokens"], "load_ms": ours[0]["load_ms"]}))
    ms = statistics.median(theirs)
    print(json.dumps({"peer": f"tokenizers {tokenizers.__version__}", "ms": ms, "mb_per_s": len(text) / ms / 1000,
                      "threads": args.threads, "tokens": tokens}))


if __name__ == "__main__":
    main()
