"""What Hugging Face's tokenizers make of whole datasets, as counts and checksums.

    python tests/golden/make_tokenizer_datasets.py DATA_DIR

DATA_DIR holds tokenizers/NAME/tokenizer.json and datasets/ with .txt, .json and .jsonl files. A document is a whole text,
or any string in a JSON file, in the order in which they stand. Writes tokenizer/datasets.json: for each tokenizer and file
the documents, the ids, how many documents decode to themselves, and a checksum of all ids:
h = h * 6364136223846793005 + id + 1 modulo 2^64, beginning with h = 0; a document ends with id -1.
"""

import json
import pathlib
import sys

import numpy
import tokenizers

data = pathlib.Path(sys.argv[1])
factor = numpy.uint64(6364136223846793005)


def strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings(item)


def documents(path):
    text = path.read_bytes().decode()
    if path.suffix == ".txt":
        return [text]
    if path.suffix == ".jsonl":
        return [s for line in text.split("\n") if line.strip() for s in strings(json.loads(line))]
    return list(strings(json.loads(text)))


def checksum(ids):
    values = (numpy.array(ids, dtype=numpy.int64) + 1).astype(numpy.uint64)
    weights = numpy.cumprod(numpy.concatenate([[numpy.uint64(1)], numpy.full(len(ids) - 1, factor)]), dtype=numpy.uint64)
    return f"{int((values * weights[::-1]).sum(dtype=numpy.uint64)):016x}"


files = sorted(p for p in (data / "datasets").rglob("*") if p.suffix in (".txt", ".json", ".jsonl"))
result = {}
for name in ("gpt2", "gptoss", "llama2", "llama3_2", "qwen3"):
    tokenizer = tokenizers.Tokenizer.from_file(str(data / "tokenizers" / name / "tokenizer.json"))
    result[name] = {}
    for path in files:
        texts = documents(path)
        encoded = [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]
        decoded = tokenizer.decode_batch(encoded, skip_special_tokens=False)
        result[name][str(path.relative_to(data / "datasets"))] = {
            "documents": len(texts), "ids": sum(map(len, encoded)), "round_trips": sum(a == b for a, b in zip(texts, decoded)),
            "checksum": checksum([i for ids in encoded for i in (*ids, -1)])}
out = pathlib.Path(__file__).parent / "tokenizer" / "datasets.json"
out.write_text(json.dumps({"tokenizers": tokenizers.__version__, "expected": result}, indent=1) + "\n")
print(out)
