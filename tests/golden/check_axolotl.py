#!/usr/bin/env python3
"""Reads axolotl's own examples as somebody who comes from there would, from its source package on PyPI:

    python3 -m venv V && V/bin/pip install pyyaml
    V/bin/pip download --no-deps --no-binary :all: axolotl==0.19.0 && tar xzf axolotl-0.19.0.tar.gz
    V/bin/python tests/golden/check_axolotl.py build/inlay axolotl-0.19.0/examples

Each file is planned with a tiny model and tiny data in the place of its own, which are on the hub, and with all linear layers in the
place of layers that it names. It must either reach a plan, or be refused by one message that is complete: without the keys that the
message names it must reach a plan. Anything else, such as a second message or another exit code than 0 and 2, is a failure."""
import collections, json, pathlib, re, subprocess, sys, tempfile
import yaml

inlay, examples = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
folder = pathlib.Path(tempfile.mkdtemp())
subprocess.run([inlay, "init", "--preset", "tiny", folder / "model"], check=True, capture_output=True)
rows = {"texts": {"text": "one two three"},
        "pairs": {"prompt": "one", "chosen": " two", "rejected": " three"},
        "judged": {"prompt": "one", "completion": " two", "label": True}}
for name, row in rows.items():
    (folder / f"{name}.jsonl").write_text((json.dumps(row) + "\n") * 4)


def with_own_model_and_data(given):
    given = dict(given)
    rl = given.get("rl")
    data = "judged" if rl == "kto" else "pairs" if rl else "texts"
    given["base_model"] = str(folder / "model")
    given["output_dir"] = str(folder / "out")
    for key in ("datasets", "test_datasets"):
        if given.get(key):
            given[key] = [{"path": str(folder / f"{data}.jsonl")}]
    for key in ("base_model_config", "tokenizer_config", "revision_of_model", "chat_template", "special_tokens", "tokens",
                "dataset_prepared_path", "lora_model_dir"):
        given.pop(key, None)  # of the model that is not there
    if any([given.pop(key, None) for key in ("lora_target_modules", "lora_target_parameters")]):
        given["lora_target_linear"] = True
    if given.get("lora_r"):
        given["lora_r"] = min(given["lora_r"], 32)
    return given


def plan(given):
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(given, sort_keys=False))
    result = subprocess.run([inlay, "plan", file, "--device", "cpu"], capture_output=True, text=True)
    return result.returncode, result.stderr, file


def named_keys(message, file, given):
    """The keys that a message's problems begin with, and those at the lines that it names."""
    top, line_of = None, {}
    for number, line in enumerate(file.read_text().splitlines(), 1):
        if re.match(r"[\w.]+:", line):
            top = line.split(":")[0]
        line_of[number] = top
    found = {line_of[int(number)] for number in re.findall(r", line (\d+)", message)}
    for problem in message.splitlines():
        subject = re.sub(r"^.*run\.yaml(, line \d+)?: ", "", problem)
        subject = re.split(r": | is | are | does | do | needs | belongs ", subject)[0]
        found |= {word.split(".")[0] for word in re.findall(r"[\w.]+", subject)} & given.keys()
    return found


counts, failures = collections.Counter(), []
for file in sorted(examples.rglob("*.y*ml")):
    try:
        given = yaml.safe_load(file.read_text())
    except yaml.YAMLError:
        continue
    if not isinstance(given, dict) or "base_model" not in given:
        continue
    given = with_own_model_and_data(given)
    code, message, written = plan(given)
    if code == 0:
        counts["reach a plan as they are"] += 1
        continue
    if code != 2:
        failures.append(f"{file}: exit code {code}\n{message}")
        continue
    wrong = named_keys(message, written, given)
    rest = {key: value for key, value in given.items() if key not in wrong or key == "datasets"}
    rest = with_own_model_and_data({"datasets": True, **rest})
    rest.setdefault("learning_rate", 1e-4)
    code, second, _ = plan(rest)
    if code == 0:
        counts["are refused by one complete message"] += 1
    else:
        failures.append(f"{file}\n  first:  {message.strip()}\n  second: {second.strip()}")
if not counts and not failures:
    sys.exit(f"{examples}: no configurations of axolotl there")
for what, count in counts.items():
    print(f"{count} {what}")
print(f"{len(failures)} failures")
print("\n".join(failures))
sys.exit(bool(failures))
