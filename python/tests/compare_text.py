"""Ids and texts beside Hugging Face's, and how fast each is, in one run: compare_text.py TOKENIZERS ROWS [--repeat N]

TOKENIZERS: a folder of model folders with tokenizer.json; ROWS: a .jsonl whose rows hold a question and an answer. Needs tokenizers and
transformers. Exits with 1 where anything differs. Times are the best of N, each on the same texts, which neither has
seen before.
"""

import argparse
import json
import os
import time
from pathlib import Path

import tokenizers
import transformers

import inlay


def best(repeat, make, work):
    """Seconds, each time with what make() gives: caches begin empty."""
    times = []
    for _ in range(repeat):
        fresh = make()
        began = time.perf_counter()
        result = work(fresh)
        times.append(time.perf_counter() - began)
    return min(times), result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tokenizers", type=Path)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    rows = [[{"role": role, "content": content} for role, content in zip(("user", "assistant"), json.loads(line).values())]
            for line in arguments.rows.read_text().splitlines()]
    texts = [message["content"] for messages in rows for message in messages]
    size = sum(len(text.encode()) for text in texts)
    threads = len(os.sched_getaffinity(0))
    print(f"{len(texts)} texts, {size / 1e6:.2f} MB, {threads} cores; tokenizers {tokenizers.__version__}, "
          f"transformers {transformers.__version__}, best of {arguments.repeat}")
    wrong = 0
    for folder in sorted(path for path in arguments.tokenizers.iterdir() if (path / "tokenizer.json").exists()):
        file = str(folder / "tokenizer.json")

        def load():
            tokenizer = tokenizers.Tokenizer.from_file(file)
            tokenizer.no_truncation()
            tokenizer.no_padding()
            return tokenizer

        theirs, expected = best(arguments.repeat, load, lambda t: t.encode_batch_fast(texts, add_special_tokens=False))
        ours, ids = best(arguments.repeat, lambda: inlay.Tokenizer(folder), lambda t: t.encode_batch(texts, special=False))
        same = all(a.tolist() == b.ids for a, b in zip(ids, expected))
        one_theirs, _ = best(arguments.repeat, load, lambda t: [t.encode(x, add_special_tokens=False) for x in texts])
        one_ours, _ = best(arguments.repeat, lambda: inlay.Tokenizer(folder),
                           lambda t: [t.encode(x, special=False) for x in texts])
        wrong += not same
        print(f"{folder.name:10} ids {'equal' if same else 'DIFFER'}; batches {size / ours / 1e6:.1f} MB/s against "
              f"{size / theirs / 1e6:.1f}: {theirs / ours:.1f} ×; one by one {size / one_ours / 1e6:.1f} against "
              f"{size / one_theirs / 1e6:.1f}: {one_theirs / one_ours:.1f} ×")
        try:
            template = inlay.ChatTemplate(folder)
        except inlay.UserError:
            continue
        auto = transformers.AutoTokenizer.from_pretrained(folder)
        render = lambda _: [auto.apply_chat_template(row, tokenize=False) for row in rows]
        try:
            theirs, expected = best(arguments.repeat, lambda: None, render)
        except Exception as error:  # a template may refuse these roles
            print(f"{folder.name:10} template refuses the rows: {error}")
            continue
        ours, got = best(arguments.repeat, lambda: None, lambda _: template.render_batch(rows))
        one, _ = best(arguments.repeat, lambda: None, lambda _: [template.render(row) for row in rows])
        wrong += got != expected
        theirs_ids, expected_ids = best(arguments.repeat, lambda: None, lambda _: auto.apply_chat_template(
            rows, tokenize=True, return_dict=False))
        def answer(tokenizer):
            return tokenizer.encode_batch(template.render_batch(rows), special=False)

        ours_ids, ids = best(arguments.repeat, lambda: inlay.Tokenizer(folder), answer)
        same = all(a.tolist() == b for a, b in zip(ids, expected_ids))
        wrong += not same
        print(f"{folder.name:10} ids of chats {'equal' if same else 'DIFFER'}; {len(rows) / ours_ids:.0f}/s against "
              f"{len(rows) / theirs_ids:.0f}/s: {theirs_ids / ours_ids:.1f} ×")
        print(f"{folder.name:10} chats {'equal' if got == expected else 'DIFFER'}; batches {len(rows) / ours:.0f}/s "
              f"against {len(rows) / theirs:.0f}/s: {theirs / ours:.1f} ×; one by one {theirs / one:.1f} ×")
    raise SystemExit(wrong > 0)


if __name__ == "__main__":
    main()
