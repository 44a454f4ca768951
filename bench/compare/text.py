#!/usr/bin/env python3
"""inlay.Tokenizer and inlay.ChatTemplate beside Hugging Face's tokenizers and transformers, in one run: the same texts, results
compared, and how fast each is. Exits with 1 where anything differs.

    python bench/compare/text.py TOKENIZERS ROWS [--threads 1] [--repeat 3]

TOKENIZERS: a folder of model folders with tokenizer.json; ROWS: a .jsonl whose rows hold a question and an answer, which
are two texts and one conversation. Each is measured in turn with the other, on texts that it has not seen before (its
caches begin empty), and the best of the repeats counts. Both have as many cores as --threads says.
"""
import argparse
import json
import os
import time
from pathlib import Path


class Beside:
    """Best seconds of two ways of doing the same work, in turn; each time with what its make() gives."""

    def __init__(self, repeat, ours, theirs):
        self.seconds, self.results = [float("inf")] * 2, [None] * 2
        for _ in range(repeat):
            for i, (make, work) in enumerate((ours, theirs)):
                fresh = make()
                began = time.perf_counter()
                self.results[i] = work(fresh)
                self.seconds[i] = min(self.seconds[i], time.perf_counter() - began)

    @property
    def ratio(self):
        return self.seconds[1] / self.seconds[0]


def row(*cells):
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizers", type=Path)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    # Before anything is imported: that is when each counts its cores.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:arguments.threads])
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    import tokenizers
    import transformers

    import inlay

    rows = [[{"role": role, "content": content} for role, content in zip(("user", "assistant"), json.loads(line).values())]
            for line in arguments.rows.read_text().splitlines()]
    texts = [message["content"] for messages in rows for message in messages]
    size = sum(len(text.encode()) for text in texts) / 1e6
    print(f"{len(texts)} texts, {size:.2f} MB, {len(rows)} conversations; {arguments.threads} threads; tokenizers "
          f"{tokenizers.__version__}, transformers {transformers.__version__}, best of {arguments.repeat}\n")
    folders = sorted(path for path in arguments.tokenizers.iterdir() if (path / "tokenizer.json").exists())
    wrong = 0

    def verdict(same):
        nonlocal wrong
        wrong += not same
        return "equal" if same else "DIFFER"

    row("tokenizer", "ids", "batches, MB/s", "tokenizers, MB/s", "ratio", "one by one")
    row(*["---"] * 6)
    for folder in folders:
        theirs = lambda: tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        ours = lambda: inlay.Tokenizer(folder)
        batches = Beside(arguments.repeat, (ours, lambda t: t.encode_batch(texts, special=False)),
                         (theirs, lambda t: t.encode_batch_fast(texts, add_special_tokens=False)))
        same = all(a.tolist() == b.ids for a, b in zip(*batches.results, strict=True))
        singly = Beside(arguments.repeat, (ours, lambda t: [t.encode(text, special=False) for text in texts]),
                        (theirs, lambda t: [t.encode(text, add_special_tokens=False) for text in texts]))
        row(folder.name, verdict(same), *(f"{size / seconds:.1f}" for seconds in batches.seconds),
            f"{batches.ratio:.1f} ×", f"{singly.ratio:.1f} ×")

    print()
    row("template", "texts", "batches, 1/s", "transformers, 1/s", "ratio", "one by one", "to ids, 1/s", "transformers, 1/s",
        "ratio", "ids")
    row(*["---"] * 10)
    nothing = lambda: None
    for folder in folders:
        auto = transformers.AutoTokenizer.from_pretrained(folder)
        try:
            template = inlay.ChatTemplate(folder)
            auto.apply_chat_template(rows[0], tokenize=False)
        except Exception:  # there is none, or it refuses these roles
            continue
        render = lambda _: [auto.apply_chat_template(messages, tokenize=False) for messages in rows]
        batches = Beside(arguments.repeat, (nothing, lambda _: template.render_batch(rows)), (nothing, render))
        singly = Beside(arguments.repeat, (nothing, lambda _: [template.render(messages) for messages in rows]),
                        (nothing, render))
        ids = Beside(arguments.repeat, (lambda: inlay.Tokenizer(folder),
                                        lambda t: t.encode_batch(template.render_batch(rows), special=False)),
                     (lambda: transformers.AutoTokenizer.from_pretrained(folder),
                      lambda t: t.apply_chat_template(rows, tokenize=True, return_dict=False)))
        same = all(a.tolist() == b for a, b in zip(*ids.results, strict=True))
        row(folder.name, verdict(batches.results[0] == batches.results[1]),
            *(f"{len(rows) / seconds:.0f}" for seconds in batches.seconds), f"{batches.ratio:.1f} ×", f"{singly.ratio:.1f} ×",
            *(f"{len(rows) / seconds:.0f}" for seconds in ids.seconds), f"{ids.ratio:.1f} ×", verdict(same))
    raise SystemExit(wrong > 0)


if __name__ == "__main__":
    main()
