"""finetune_data.py FILE [COUNT] — writes COUNT (500) chats as JSON lines, to fine-tune a model on: made here, no source.

Questions about sums, opposites, plurals, colours and capitals, answered in one fixed style, so that a few hundred are
enough to see a loss fall. The same COUNT gives the same file.
"""

import json
import random
import sys

OPPOSITES = {"hot": "cold", "big": "small", "fast": "slow", "early": "late", "full": "empty", "light": "dark",
             "young": "old", "open": "closed", "soft": "hard", "near": "far", "high": "low", "clean": "dirty"}
PLURALS = {"cat": "cats", "city": "cities", "leaf": "leaves", "mouse": "mice", "child": "children", "box": "boxes",
           "foot": "feet", "knife": "knives", "goose": "geese", "berry": "berries"}
CAPITALS = {"France": "Paris", "Japan": "Tokyo", "Kenya": "Nairobi", "Peru": "Lima", "Canada": "Ottawa",
            "Norway": "Oslo", "Egypt": "Cairo", "India": "New Delhi", "Chile": "Santiago", "Austria": "Vienna"}
COLOURS = {"grass": "green", "snow": "white", "coal": "black", "a ripe banana": "yellow", "the clear sky": "blue"}


def make(chance):
    kind = chance.randrange(5)
    if kind == 0:
        a, b = chance.randrange(2, 60), chance.randrange(2, 60)
        return f"What is {a} plus {b}?", f"Adding {b} to {a} gives {a + b}."
    if kind == 1:
        word = chance.choice(sorted(OPPOSITES))
        return f"Tell me the opposite of '{word}'.", f"The opposite is '{OPPOSITES[word]}'."
    if kind == 2:
        word = chance.choice(sorted(PLURALS))
        return f"What is the plural of {word}?", f"One {word}, two {PLURALS[word]}."
    if kind == 3:
        place = chance.choice(sorted(CAPITALS))
        return f"Which city is the capital of {place}?", f"{CAPITALS[place]} is the capital of {place}."
    thing = chance.choice(sorted(COLOURS))
    return f"What colour is {thing}?", f"You will find that {thing} is {COLOURS[thing]}."


def main():
    count, chance = int(sys.argv[2]) if len(sys.argv) > 2 else 500, random.Random(1)
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        for _ in range(count):
            question, answer = make(chance)
            file.write(json.dumps({"messages": [{"role": "system", "content": "Answer in one short sentence."},
                                                {"role": "user", "content": question},
                                                {"role": "assistant", "content": f"Sure. {answer} Anything else?"}]})
                       + "\n")


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        sys.exit(print(__doc__))
    main()
