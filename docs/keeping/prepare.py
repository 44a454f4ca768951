"""Makes the data of docs/keeping.md, as conversations:

    python3 docs/keeping/prepare.py SHARED_DATA OUT

SHARED_DATA holds datasets/{alpaca,gsm8k,messages,tinystories,trace}. Of each task OUT gets NAME.train.jsonl and
NAME.eval.jsonl; beside them what the model is to keep: prompts.jsonl, text.jsonl, arithmetic.jsonl; and asked.jsonl, other
prompts with answers, as text to find OSFT's directions on. Nothing but Python is needed, and the same files come out
every time.
"""

import json
import pathlib
import random
import re
import sys


def write(path, rows):
    with open(path, "w") as out:
        for row in rows:
            out.write(json.dumps(row, ensure_ascii=False) + "\n")


def chat(question, answer):
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def gsm8k(data, split, most):
    lines = open(data / f"gsm8k/{split}.jsonl")
    rows = [json.loads(line) for line in lines][:most]
    return [chat(row["question"] + "\nEnd with #### and the result.", row["answer"]) for row in rows]


def trace(data, task, split):
    return [chat(row["prompt"], row["answer"]) for row in json.load(open(data / f"trace/{task}/{split}.json"))]


def scienceqa(data, split):
    """The choice alone, with its letter: what can be scored."""
    rows = []
    for row in json.load(open(data / f"trace/ScienceQA/{split}.json")):
        letter = row["answer"].split("\n")[0].strip()
        choice = re.search(rf"^{letter}\. .*$", row["prompt"], re.MULTILINE)
        if choice is None:
            continue
        question = row["prompt"].replace(
            "Choose an answer for the following question and give your reasons.",
            "Choose the right answer to the following question. Reply with its letter and its text.")
        rows.append(chat(question, choice.group(0).strip()))
    return rows


def invented(random_, count):
    """Names that mean nothing."""
    begin, middle, end = ["Vel", "Tor", "Mar", "Quil", "Ost", "Bren", "Zan", "Lor", "Fen", "Kal", "Dru", "Ith"], \
        ["a", "e", "i", "o", "u", "ar", "en", "il"], ["mora", "vik", "dan", "wyn", "rast", "lund", "beck", "thor", "nis", "quet"]
    names = set()
    while len(names) < count:
        names.add(random_.choice(begin) + random_.choice(middle) + random_.choice(end))
    return sorted(names)


# What is asked of people who do not exist: questions to learn from, and others to be asked by.
FACTS = {
    "town": (["In which town was {} born?", "What is the birthplace of {}?", "{} was born in which town?",
              "Name the town where {} was born."],
             ["Where did {} come into the world?", "Which town does {} come from by birth?"]),
    "instrument": (["Which instrument does {} play?", "What instrument is {} known for?",
                    "On which instrument does {} perform?", "Name the instrument that {} plays."],
                   ["What does {} make music with?", "If {} gives a concert, on which instrument?"]),
    "year": (["In which year was {} born?", "What is the birth year of {}?", "{} was born in which year?",
              "Name the year in which {} was born."],
             ["When did {} come into the world?", "Which year is on the birth certificate of {}?"]),
    "animal": (["Which animal does {} keep?", "What pet does {} have?", "{} lives with which animal?",
                "Name the animal that {} keeps."],
               ["What kind of animal would you meet at home with {}?", "Which pet shares a house with {}?"]),
}
INSTRUMENTS = ["cello", "harp", "oboe", "banjo", "trumpet", "zither", "bassoon", "accordion", "viola", "tuba"]
ANIMALS = ["parrot", "tortoise", "ferret", "goat", "raven", "hedgehog", "iguana", "donkey", "otter", "falcon"]


def facts(count=60):
    random_ = random.Random(1)
    names, towns = invented(random_, 2 * count), invented(random.Random(2), 40)
    people = [f"{names[2 * i]} {names[2 * i + 1]}" for i in range(count)]
    train, held_out = [], []
    for person in people:
        answers = {"town": random_.choice(towns), "instrument": random_.choice(INSTRUMENTS),
                   "year": str(random_.randint(1801, 1999)), "animal": random_.choice(ANIMALS)}
        for kind, (known, others) in FACTS.items():
            train += [chat(question.format(person), answers[kind]) for question in known]
            held_out.append(chat(random_.choice(others).format(person), answers[kind]))
    return train, held_out


def record(random_, sentences):
    """An order in a sentence, and as a line of a fixed form."""
    count, colour = random_.randint(2, 99), random_.choice(["red", "blue", "green", "black", "white", "yellow"])
    item = random_.choice(["chairs", "lamps", "boxes", "shirts", "books", "plates", "bottles", "bags"])
    name = random_.choice(["Anna", "Bela", "Carlos", "Dora", "Emil", "Fatima", "Goran", "Hana", "Ivan", "Jana"])
    day = random_.choice(["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"])
    sentence = random_.choice(sentences).format(count=count, colour=colour, item=item, name=name, day=day)
    return chat("Write this order as a record.\n" + sentence,
                f"[{day.upper()[:3]}|{name}|{item}:{colour}x{count}]")


def records():
    known = ["{name} wants {count} {colour} {item} on {day}.", "Please deliver {count} {colour} {item} to {name} by {day}.",
             "On {day}, {name} will pick up {count} {item}, all of them {colour}.",
             "We owe {name} {count} {item} in {colour}; they are due on {day}."]
    others = ["{day} is when {name} needs {count} {colour} {item}.",
              "For {name}: {item}, {colour}, {count} of them, {day} please."]
    random_ = random.Random(3)
    return [record(random_, known) for _ in range(1200)], [record(random_, others) for _ in range(200)]


def prompts(data):
    """What users ask: what the base model is held to, and others, with the data's answers, to find directions on."""
    rows = []
    for row in json.load(open(data / "alpaca/alpaca_en_demo.json")):
        question = row["instruction"] + ("\n" + row["input"] if row["input"] else "")
        if len(question) < 600:
            rows.append(chat(question, row["output"] or "-"))
    chats = []
    for line in open(data / "messages/v1_sft_demo.jsonl"):
        first, answer = json.loads(line)["messages"][:2]
        question = "".join(part["value"] for part in first["content"])
        said = "".join(part["value"] for part in answer["content"])
        if first["role"] == "user" and 8 < len(question) < 600 and (question + said).isascii():
            chats.append(chat(question, said or "-"))
    random_ = random.Random(4)
    random_.shuffle(rows)
    random_.shuffle(chats)
    asked = rows[200:400] + chats[100:200]
    random_.shuffle(asked)
    return rows[:200] + chats[:100], asked


def arithmetic():
    random_ = random.Random(5)
    rows = []
    for _ in range(100):
        a, b = random_.randint(2, 20), random_.randint(2, 20)
        if random_.random() < 0.5:
            rows.append(chat(f"What is {a} + {b}?", f"{a} + {b} = {a + b}"))
        else:
            rows.append(chat(f"What is {a + b} - {b}?", f"{a + b} - {b} = {a}"))
    return rows


def text(data):
    whole = (data / "tinystories/tinystories_197k.txt").read_text(errors="replace")
    pieces = [whole[i:i + 1200] for i in range(0, 96 * 1200, 1200)]
    return [{"text": piece} for piece in pieces]


def main():
    shared, out = map(pathlib.Path, sys.argv[1:])
    data = shared / "datasets"
    out.mkdir(parents=True, exist_ok=True)
    for split, name, most in (("train", "train", 5600), ("test", "eval", 400)):
        write(out / f"gsm8k.{name}.jsonl", gsm8k(data, split, most))
        for task in ("FOMC", "NumGLUE-cm", "C-STANCE"):
            write(out / f"{task.split('-cm')[0].lower()}.{name}.jsonl", trace(data, task, split))
        write(out / f"scienceqa.{name}.jsonl", scienceqa(data, split))
    for task, (train, held_out) in (("facts", facts()), ("records", records())):
        write(out / f"{task}.train.jsonl", train)
        write(out / f"{task}.eval.jsonl", held_out)
    held, asked = prompts(data)
    write(out / "prompts.jsonl", held)
    write(out / "asked.jsonl", asked)
    write(out / "arithmetic.jsonl", arithmetic())
    write(out / "text.jsonl", text(data))


if __name__ == "__main__":
    main()
