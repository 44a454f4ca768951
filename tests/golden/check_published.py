#!/usr/bin/env python3
"""Compares published_configs.json with a table of the same models that others wrote: litgpt's, from PyPI.

    pip download --no-deps litgpt==0.5.13 && unzip litgpt-*.whl
    python3 check_published.py litgpt/config.py

Models that litgpt does not have carry in `compared_with` what they were held against instead. Exits with 1 where a number
differs."""
import json
import pathlib
import runpy
import sys

SHAPES = {"hidden_size": "n_embd", "intermediate_size": "intermediate_size", "num_hidden_layers": "n_layer",
          "num_attention_heads": "n_head", "num_key_value_heads": "n_query_groups", "head_dim": "head_size",
          "vocab_size": "padded_vocab_size"}


def completed(entry):
    """litgpt's own defaults: heads of n_embd / n_head, as many groups as heads, a vocabulary without padding."""
    entry = dict(entry)
    entry.setdefault("head_size", entry["n_embd"] // entry["n_head"])
    entry.setdefault("n_query_groups", entry["n_head"])
    entry.setdefault("padded_vocab_size", entry.get("vocab_size"))
    return entry


def main():
    table = runpy.run_path(sys.argv[1])["name_to_config"]
    theirs = {"{org}/{name}".format(**entry["hf_config"]).lower(): entry for entry in table.values()}
    models = json.loads((pathlib.Path(__file__).parent / "published_configs.json").read_text())["models"]
    differences = compared = 0
    for model in models:
        entry = theirs.get(model["name"].lower())
        if entry is None:
            print(f"{model['name']}: not in litgpt; {model['compared_with']}")
            continue
        entry, compared = completed({"n_head": 32, "n_embd": 4096, "n_layer": 16, **entry}), compared + 1
        config = model["config"].get("text_config", model["config"])  # beside images
        for ours, name in SHAPES.items():
            if config.get(ours) is not None and config[ours] != entry[name]:
                print(f"{model['name']}: {ours} is {config[ours]}, in litgpt {entry[name]}")
                differences += 1
    print(f"{compared} models compared, {differences} differences")
    return 1 if differences or compared == 0 else 0


sys.exit(main())
