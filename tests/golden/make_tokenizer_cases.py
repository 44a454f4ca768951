"""Small tokenizers, one for every step that a tokenizer.json may ask for, with what Hugging Face's tokenizers make of
awkward texts.

    python tests/golden/make_tokenizer_cases.py

Writes tokenizer/cases.json: `models` (two small BPE models, learned here), `texts`, and `cases`: the rest of a
tokenizer.json, the model's name and changes to it, and for each text ids, ids with special tokens, and the decoded text
with and without special tokens.
"""

import json
import pathlib

import tokenizers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

corpus = """It's the well-known story of 1,234 little pigs: they'd gone out, one by one, into the wide world. The first
little pig built a house of straw; the second little pig built a house of sticks; the third, well, he's the one who'll
live. "Little pig, little pig, let me in!" said the wolf. HELLO WORLD, hello world. def f(x):\n    return x + 1\n
Ünïcödé naïve café ﬁn ½ x² – „quoted“ … 東京 日本語 東京 日本 привет мир"""

texts = [
    "", " ", "  ", "a", "Hello world", " Hello  world ", "It's the pigs' house, they'd SAY", "IT'S THE PIGS", "x=12345, y=6.78",
    "\n", "\n\n\n", " \n \n x", "line\r\nline\rline", "\ttab\t\ttab ", "trailing   ", "   leading", "naïve café", "cafe\u0301 A\u030a \u1e9b\u0323",
    "ﬁn ½ x² Ⅷ", "東京の日本語", "привет, мир!", "😀 😀🏽 👨‍👩‍👧", "\u00a0nbsp\u3000wide\u2028sep", "İstanbul ẞtraße ΣΑΣ",
    "<s>Hello</s>", "a<mask>b", "a <mask> b", "a  <mask>  b", "word wordy sword word", "Word WORD", "<s><s> </s>", "tok tok<keep> tok",
    "__init__.py 3rd", "well-known -- really?!", "a\u0000b", "\ufffd\ufeffx", "0123456789", "١٢٣ ४५", "▁under▁ score", "'S 'ſ 'LL 'll", "^^ $5 + 3 = 8 ~`",
    "the " * 20, "ab" * 40, "  " * 30 + "x",
]

byte_level = Tokenizer(models.BPE())
byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
byte_level.train_from_iterator([corpus], trainers.BpeTrainer(
    vocab_size=420, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
characters = Tokenizer(models.BPE(unk_token="<unk>"))
characters.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
characters.pre_tokenizer = pre_tokenizers.Metaspace()
characters.train_from_iterator([corpus], trainers.BpeTrainer(
    vocab_size=400, show_progress=False, special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)]))


def model_of(tokenizer):
    model = json.loads(tokenizer.to_str())["model"]
    return {"type": "BPE", "vocab": model["vocab"], "merges": model["merges"]}


base = {"bytes": model_of(byte_level), "chars": model_of(characters)}


def added(content, id, **flags):
    return {"id": id, "content": content, **{"single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                                             "special": False, **flags}}


def byte_level_step(prefix=False, regex=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def split(pattern, behavior, invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def sequence(key, *steps):
    return {"type": "Sequence", key: list(steps)}


def metaspace(scheme="always", cut=True):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": cut}


spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
llama_normalizer = sequence("normalizers", {"type": "Prepend", "prepend": "▁"}, spaces)
llama_decoder = sequence("decoders", {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
                         {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0})
fallback = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
llama_specials = [added("<unk>", 0, special=True), added("<s>", 1, special=True), added("</s>", 2, special=True)]


def template(first=(), last=()):
    ids = {"<s>": 1, "</s>": 2}
    return {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": t, "type_id": 0}} for t in first] + [{"Sequence": {"id": "A", "type_id": 0}}] +
                      [{"SpecialToken": {"id": t, "type_id": 0}} for t in last],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {t: {"id": t, "ids": [ids[t]], "tokens": [t]} for t in {*first, *last}}}


cases = []


def case(name, model, options=None, **parts):
    cases.append({"name": name, "model": model, "options": options or {}, **parts})


def bytes_case(name, pre, **parts):
    case(name, "bytes", pre_tokenizer=pre, decoder=byte_level_step(), **parts)


def chars_case(name, **parts):
    options = parts.pop("options", fallback)
    case(name, "chars", options, **{"normalizer": llama_normalizer, "decoder": llama_decoder, "added_tokens": llama_specials, **parts})


for prefix in (False, True):
    for regex in (False, True):
        bytes_case(f"byte_level prefix {prefix} regex {regex}", byte_level_step(prefix, regex))
for pattern in ({"Regex": r"\s+"}, {"Regex": r"\d|\w+(?=l)"}, {"String": "l"}, {"Regex": r"x*"}, {"Regex": r"^\s*\S|(?i:HE)l\b"}):
    for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            bytes_case(f"split {pattern} {behavior} {invert}", sequence("pretokenizers", split(pattern, behavior, invert), byte_level_step()))
for regex in (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
              r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}{1,3}|[\p{P}\p{S}]+|\s+", r"[一-龥\u3040-ゟ゠-ヿ]+", r"[\w']+|\W", r"[\S&&[^l]]+|\s"):
    if "&&" in regex:
        continue  # refused, see the tests of errors
    bytes_case(f"regex {regex}", sequence("pretokenizers", split({"Regex": regex}, "Isolated"), byte_level_step()))
for each in (False, True):
    bytes_case(f"digits {each}", sequence("pretokenizers", {"type": "Digits", "individual_digits": each}, byte_level_step()))
for behavior in ("Removed", "Isolated", "Contiguous", "MergedWithNext"):
    bytes_case(f"punctuation {behavior}", sequence("pretokenizers", {"type": "Punctuation", "behavior": behavior}, byte_level_step()))
for name in ("Whitespace", "WhitespaceSplit"):
    bytes_case(name, sequence("pretokenizers", {"type": name}, byte_level_step()))
bytes_case("steps behind bytes", sequence("pretokenizers", {"type": "Punctuation", "behavior": "Contiguous"}, byte_level_step(False, True),
                                          {"type": "Digits", "individual_digits": False},
                                          split({"Regex": "[0-9][0-9][0-9]"}, "Isolated")))
for name in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents"):
    bytes_case(name, byte_level_step(False, True), normalizer={"type": name})
bytes_case("several normalizers", byte_level_step(), normalizer=sequence(
    "normalizers", {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}, {"type": "Strip", "strip_left": True, "strip_right": True},
    {"type": "Replace", "pattern": {"Regex": "[aeiou]+"}, "content": "<$0>"}))
for left in (False, True):
    bytes_case(f"strip {left}", byte_level_step(), normalizer={"type": "Strip", "strip_left": left, "strip_right": not left})
bytes_case("ignore_merges", byte_level_step(False, True))
cases[-1]["options"] = {"ignore_merges": True}
bytes_case("added tokens", byte_level_step(False, True), normalizer={"type": "Lowercase"}, added_tokens=[
    added("<s>", 420, special=True), added("</s>", 421, special=True), added("<mask>", 422, lstrip=True, special=True),
    added("word", 423, single_word=True), added("WORD", 424, normalized=True, rstrip=True), added("<keep>", 425), added("tok", 426),
    added("tok<", 427, normalized=True)])
bytes_case("added tokens that take spaces", byte_level_step(), added_tokens=[
    added("<mask>", 420, lstrip=True, rstrip=True, special=True), added("<s>", 421, rstrip=True), added(" ", 422, single_word=True)])
case("no decoder", "bytes", pre_tokenizer=byte_level_step(False, True))

chars_case("llama")
for single in (((), ()), (("<s>",), ()), (("<s>", "<s>"), ("</s>",))):
    chars_case(f"template {single}", post_processor=template(*single))
chars_case("post-processors in a row", post_processor=sequence("processors", byte_level_step(), template(("<s>",))))
for fuse in (False, True):
    chars_case(f"unknown, fused {fuse}", options={"unk_token": "<unk>", "fuse_unk": fuse})
chars_case("unknown without a token", options={})
chars_case("ignore_merges of characters", options={**fallback, "ignore_merges": True})
for scheme in ("always", "first", "never"):
    for cut in (False, True):
        chars_case(f"metaspace {scheme} {cut}", normalizer=None, pre_tokenizer=metaspace(scheme, cut),
                   decoder=sequence("decoders", {"type": "ByteFallback"}, metaspace(scheme, cut)))
chars_case("metaspace behind a split", normalizer=None, decoder=metaspace(),
           pre_tokenizer=sequence("pretokenizers", {"type": "WhitespaceSplit"}, metaspace()))
chars_case("strip from every token", decoder=sequence("decoders", {"type": "Strip", "content": "▁", "start": 2, "stop": 0}, {"type": "Fuse"}))
chars_case("replace by regex", decoder=sequence("decoders", {"type": "Replace", "pattern": {"Regex": "[▁e]+"}, "content": "_"}))

for entry in cases:
    parts = {key: entry.get(key) for key in ("normalizer", "pre_tokenizer", "post_processor", "decoder")}
    file = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": entry.get("added_tokens", []), **parts,
            "model": {**{"dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                         "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}, **base[entry["model"]], **entry["options"]}}
    tokenizer = Tokenizer.from_str(json.dumps(file))
    special = [tokenizer.encode(t).ids for t in texts]
    entry["ids"] = [tokenizer.encode(t, add_special_tokens=False).ids for t in texts]
    if special != entry["ids"]:
        entry["ids_with_special"] = special
    entry["decoded"] = [tokenizer.decode(ids) for ids in special]
    kept = [tokenizer.decode(ids, skip_special_tokens=False) for ids in special]
    if kept != entry["decoded"]:
        entry["decoded_with_special"] = kept

out = pathlib.Path(__file__).parent / "tokenizer"
out.mkdir(exist_ok=True)
(out / "cases.json").write_text(json.dumps(
    {"tokenizers": tokenizers.__version__, "models": base, "texts": texts, "cases": cases}, ensure_ascii=False, separators=(",", ":")) + "\n")
print(len(cases), "cases,", len(texts), "texts")
