"""Makes tests/golden/parquet: Parquet files by several writers and in every encoding, with their rows as JSON beside
them; and tests/fuzz/seeds/parquet: small ones to begin with.

    pip install pyarrow==26.0.1 polars duckdb
    python tests/golden/make_parquet.py
"""

import datetime
import decimal
import json
import pathlib
import random

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq

FOLDER = pathlib.Path(__file__).parent / "parquet"
SEEDS = pathlib.Path(__file__).parent.parent / "fuzz/seeds/parquet"
ROWS = 90

MESSAGE = pa.struct([
    ("role", pa.string()),
    ("content", pa.string()),
    ("parts", pa.list_(pa.struct([("type", pa.string()), ("text", pa.string())]))),
    ("weight", pa.float64()),
])
SCHEMA = pa.schema([
    pa.field("id", pa.int64(), nullable=False),
    ("tiny", pa.int8()),
    ("unsigned", pa.uint32()),
    ("huge", pa.uint64()),
    ("flag", pa.bool_()),
    ("real", pa.float32()),
    ("double", pa.float64()),
    ("half", pa.float16()),
    ("text", pa.string()),
    ("large", pa.large_string()),
    ("fixed", pa.binary(4)),
    ("price", pa.decimal128(20, 2)),
    ("day", pa.date32()),
    ("nothing", pa.null()),
    ("tags", pa.list_(pa.string())),
    ("matrix", pa.list_(pa.list_(pa.int32()))),
    ("messages", pa.list_(MESSAGE)),
    ("about", pa.struct([("inner", pa.struct([("x", pa.int32())])), ("names", pa.list_(pa.string()))])),
    ("counts", pa.map_(pa.string(), pa.int64())),
])
WORDS = ["", "a", "user", "assistant", "Grüße", "日本語", "🦙 llama", "line\nbreak", "word " * 40, "\u0000"]


def maybe(rng, make, chance=0.8):
    return make() if rng.random() < chance else None


def some(rng, make, most=4):
    return [make() for _ in range(rng.randrange(most))]


def row(rng, i):
    word = lambda: rng.choice(WORDS)
    part = lambda: maybe(rng, lambda: {"type": "text", "text": maybe(rng, word)}, 0.9)
    message = lambda: maybe(rng, lambda: {
        "role": rng.choice(["system", "user", "assistant"]), "content": maybe(rng, word),
        "parts": maybe(rng, lambda: some(rng, part)), "weight": maybe(rng, lambda: rng.choice([0.0, 0.5, 1.0]))}, 0.95)
    numbers = lambda: maybe(rng, lambda: some(rng, lambda: maybe(rng, lambda: rng.randrange(-2**31, 2**31))))
    return {
        "id": i * 1000003 - 2**40,
        "tiny": maybe(rng, lambda: rng.randrange(-128, 128)),
        "unsigned": maybe(rng, lambda: rng.randrange(2**32)),
        "huge": maybe(rng, lambda: rng.randrange(2**64)),
        "flag": maybe(rng, lambda: rng.random() < 0.5),
        "real": maybe(rng, lambda: rng.randrange(-1000, 1000) / 8),
        "double": maybe(rng, lambda: rng.gauss(0, 1e6)),
        "half": maybe(rng, lambda: rng.randrange(-100, 100) / 4),
        "text": maybe(rng, word),
        "large": maybe(rng, lambda: f"prefix shared by all of them {rng.randrange(1000)}"),
        "fixed": maybe(rng, lambda: b"%04d" % rng.randrange(10000)),
        "price": maybe(rng, lambda: decimal.Decimal(rng.randrange(-10**6, 10**6)) / 100),
        "day": maybe(rng, lambda: datetime.date(1970, 1, 1) + datetime.timedelta(days=rng.randrange(-400, 20000))),
        "nothing": None,
        "tags": maybe(rng, lambda: some(rng, lambda: maybe(rng, word))),
        "matrix": maybe(rng, lambda: some(rng, numbers)),
        "messages": maybe(rng, lambda: some(rng, message)),
        "about": maybe(rng, lambda: {"inner": maybe(rng, lambda: {"x": maybe(rng, lambda: rng.randrange(9))}),
                                     "names": maybe(rng, lambda: some(rng, word))}),
        "counts": maybe(rng, lambda: list({f"k{rng.randrange(5)}": rng.randrange(-9, 9) for _ in range(3)}.items())),
    }


def plain(value, key=None):
    """A value as the reader gives it: dates as days, maps as objects, decimals as numbers."""
    if isinstance(value, datetime.date):
        return (value - datetime.date(1970, 1, 1)).days
    if isinstance(value, decimal.Decimal):
        return float(value)
    if isinstance(value, bytes):
        return value.decode()
    if key == "counts" and value is not None:
        return dict(value)
    if isinstance(value, dict):
        return {k: plain(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    return value


def write_json(name, rows):
    with open(FOLDER / name, "w") as out:
        for each in rows:
            out.write(json.dumps(plain(each), ensure_ascii=False) + "\n")


def main():
    for folder in FOLDER, SEEDS:
        folder.mkdir(exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
    rng = random.Random(7)
    rows = [row(rng, i) for i in range(ROWS)]
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    write_json("all.jsonl", table.to_pylist())

    write = lambda name, **options: pq.write_table(table, FOLDER / f"all_{name}.parquet", **options)
    write("snappy")
    write("none_small_pages", compression="none", data_page_size=64, write_batch_size=7, row_group_size=40)
    write("zstd_v2", compression="zstd", data_page_version="2.0", row_group_size=50)
    write("gzip_v2_small_pages", compression="gzip", data_page_version="2.0", data_page_size=64, write_batch_size=5)
    write("lz4_plain", compression="lz4", use_dictionary=False, use_compliant_nested_type=False)
    delta = {"id": "DELTA_BINARY_PACKED", "tiny": "DELTA_BINARY_PACKED", "huge": "DELTA_BINARY_PACKED",
             "unsigned": "DELTA_BINARY_PACKED", "text": "DELTA_LENGTH_BYTE_ARRAY", "large": "DELTA_BYTE_ARRAY",
             "fixed": "DELTA_BYTE_ARRAY", "real": "BYTE_STREAM_SPLIT", "double": "BYTE_STREAM_SPLIT",
             "half": "BYTE_STREAM_SPLIT", "flag": "RLE", "day": "BYTE_STREAM_SPLIT"}
    write("delta", use_dictionary=False, column_encoding=delta)
    write("delta_v2_small_pages", use_dictionary=False, column_encoding=delta, data_page_version="2.0",
          data_page_size=64, write_batch_size=3)

    # Other writers, on what their types can hold.
    kept = ["id", "unsigned", "flag", "double", "text", "tags", "matrix", "messages", "about"]
    some_columns = table.select(kept)
    write_json("common.jsonl", some_columns.to_pylist())
    polars.from_arrow(some_columns).write_parquet(FOLDER / "common_polars.parquet")
    connection = duckdb.connect()
    connection.register("rows", some_columns)
    connection.execute(f"COPY rows TO '{FOLDER}/common_duckdb.parquet' (FORMAT parquet, PARQUET_VERSION v2)")

    # Enough of one value for long runs, and enough tokens for several blocks of differences.
    tokens = [{"input_ids": [rng.randrange(300) for _ in range(rng.randrange(1, 400))]} for _ in range(12)]
    for each in tokens:
        each["labels"] = [-100 if k < 20 else t for k, t in enumerate(each["input_ids"])]
    write_json("tokens.jsonl", tokens)
    list_of = pa.list_(pa.int32())
    tokens = pa.Table.from_pylist(tokens, schema=pa.schema([("input_ids", list_of), ("labels", list_of)]))
    pq.write_table(tokens, FOLDER / "tokens_delta.parquet", use_dictionary=False,
                   column_encoding={"input_ids.list.element": "DELTA_BINARY_PACKED",
                                    "labels.list.element": "PLAIN"})
    pq.write_table(tokens, FOLDER / "tokens_dictionary.parquet")
    pq.write_table(tokens.slice(0, 0), FOLDER / "empty.parquet")
    pq.write_table(tokens, FOLDER / "brotli.parquet", compression="brotli")

    few = table.slice(0, 6)
    seed = lambda name, columns, **options: pq.write_table(few.select(columns), SEEDS / name, store_schema=False,
                                                           write_statistics=False, **options)
    seed("none", ["flag", "text", "messages"], compression="none")
    seed("snappy", ["id", "tags", "counts"])
    seed("delta", ["id", "text", "large"], compression="none", use_dictionary=False,
         column_encoding={key: delta[key] for key in ["id", "text", "large"]})
    seed("split_v2", ["real", "fixed", "price", "matrix"], compression="none", use_dictionary=False,
         data_page_version="2.0", column_encoding={"real": "BYTE_STREAM_SPLIT"})
    polars.from_arrow(few.select(kept)).write_parquet(SEEDS / "polars")


if __name__ == "__main__":
    main()
