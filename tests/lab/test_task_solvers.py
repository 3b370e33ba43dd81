"""Every task can be solved at every length, and not by looking at the wrong thing.

A task that no solver gets right at a long length would be taken for a model that breaks there; one that a shortcut
gets right says nothing about positions. A solver answers one token at a time, with the right answer so far in view.
"""

from __future__ import annotations

import functools
import random
import re
from collections import Counter

import pytest

from ordinate.lab.config import RunConfig
from ordinate.lab.tasks import IGNORED, TASKS, Problem

LENGTHS = (64, 65, 128, 256, 512, 1000)


def copied(text: str) -> str:
    question, _, answer = text.partition("=")
    return question[len(answer)]


def reversed_(text: str) -> str:
    question, _, answer = text.partition("=")
    return question[-1 - len(answer)]


def added(text: str) -> str:
    question, _, answer = text.partition("=")
    one, two = question.split("+")
    return f"{int(one) + int(two):0{len(one) + 1}d}"[-1 - len(answer)]


def named_key(text: str) -> str:
    answer = text.partition("? ")[2]
    return re.search(r"key (\d{5})", text)[1][len(answer)]


def what_followed(text: str) -> str:
    return text[text.rindex(text[-1], 0, -1) + 1]


def last_written(text: str) -> str:
    return text[text.rindex("w") + 1]


SOLVERS = {
    "copy": copied,
    "reverse": reversed_,
    "addition": added,
    "passkey": named_key,
    "induction": what_followed,
    "flipflop": last_written,
}


def mirrored_pair(text: str) -> str:
    """Add the two digits, whatever is carried."""
    question, _, answer = text.partition("=")
    one, two = question.split("+")
    return str((_place(one, len(answer)) + _place(two, len(answer))) % 10)


def mirrored_pair_and_the_one_before(text: str) -> str:
    """Add the two digits, and carry what those before them make by themselves."""
    return carried_from(1, text)


def carried_from(places: int, text: str) -> str:
    """Add the two digits, and carry what so many places before them make."""
    question, _, answer = text.partition("=")
    one, two = question.split("+")
    at, carry = len(answer), 0
    for before in range(max(0, at - places), at):
        carry = _place(one, before) + _place(two, before) + carry > 9
    return str((_place(one, at) + _place(two, at) + carry) % 10)


def _place(number: str, at: int) -> int:
    return int(number[-1 - at]) if at < len(number) else 0


def nines(text: str) -> str:
    """Add the ones, and then write 9."""
    return mirrored_pair(text) if text.endswith("=") else "9"


def digits_in_order(text: str) -> str:
    question, _, answer = text.partition("?")
    return re.findall(r"\d", question)[len(answer.strip())]


def last_digits(text: str) -> str:
    question, _, answer = text.partition("?")
    return re.findall(r"\d", question)[len(answer.strip()) - 5]


def commonest(text: str) -> str:
    return Counter(text).most_common(1)[0][0]


def one_of_the_least_common(text: str) -> str:
    counts = Counter(text)
    least = [letter for letter, count in counts.items() if count == min(counts.values())]
    return random.Random(text).choice(least)


def twelve_before(text: str) -> str:
    return text[-12:][0]


def twenty_four_before(text: str) -> str:
    return text[-24:][0]


def after_the_same_letter(text: str) -> str:
    """What followed the last letter in the question, wherever that letter stood."""
    question, _, answer = text.partition("=")
    at = question.find(answer[-1:])
    return question[(at + 1) % len(question)]


def last_bit(text: str) -> str:
    return re.findall(r"\d", text)[-1]


def last_read(text: str) -> str:
    return re.findall(r"r(\d)|^w(\d)", text)[-1][0] or text[1]


def first_bit(text: str) -> str:
    return text[1]


def commoner_bit(text: str) -> str:
    return "1" if text.count("1") > text.count("0") else "0"


SHORTCUTS = {
    "copy": (after_the_same_letter, commonest),
    "reverse": (after_the_same_letter, copied, commonest),
    "addition": (mirrored_pair, mirrored_pair_and_the_one_before, nines),
    "passkey": (digits_in_order, last_digits, commonest),
    "induction": (commonest, one_of_the_least_common, twelve_before, twenty_four_before),
    "flipflop": (last_bit, last_read, first_bit, commoner_bit),
}


def questions(task: Problem, length: int, count: int, variant: str) -> list[tuple[str, list[int]]]:
    """Test sequences with their answers, and the places of what is asked for."""
    config = RunConfig("none", evaluation_tokens=4 * count * length, train_length=64, lengths=(length,))
    batch = task.test_sequences(config, length, variant)
    found = []
    for tokens, targets in zip(
        batch.tokens[:count].tolist(), batch.targets[:count].tolist(), strict=True
    ):
        text, places = [*tokens, ord(" ")], []
        for at, target in enumerate(targets, 1):
            if target != IGNORED:
                text[at] = target
                places.append(at)
        found.append((bytes(text).decode(), places))
    return found


def share_right(task: Problem, solver, length: int, variant: str = "test", count: int = 256) -> float:
    """How often a solver is right, counted as the task counts."""
    right = [
        [solver(text[:at]) == text[at] for at in places]
        for text, places in questions(task, length, count, variant)
    ]
    if task.measure == "exact match":
        right = [[all(each)] for each in right]
    flat = [one for each in right for one in each]
    return sum(flat) / len(flat)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", SOLVERS)
def test_a_solver_is_right_at_every_length(name, length):
    task = TASKS[name]()
    for variant in ("training", "test", *task.variants):
        assert share_right(task, SOLVERS[name], length, variant, count=64) == 1.0


def test_every_problem_has_a_solver_and_shortcuts():
    problems = set(TASKS) - {"language"}
    assert set(SOLVERS) == set(SHORTCUTS) == problems


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(
    ("name", "shortcut"),
    [(name, each) for name, several in SHORTCUTS.items() for each in several],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_shortcut_is_no_better_than_the_baseline(name, shortcut, length):
    task = TASKS[name]()
    count = 512 if length <= 128 else 96
    config = RunConfig("none", evaluation_tokens=512 * length, train_length=64, lengths=(length,))
    chance = task.baseline(task.test_sequences(config, length)).accuracy
    assert share_right(task, shortcut, length, count=count) <= chance + 0.05


@pytest.mark.parametrize(("length", "places"), [(64, 3), (256, 8), (1000, 16)])
def test_in_longer_numbers_carries_come_from_farther(length, places):
    shortcut = functools.partial(carried_from, places)
    assert share_right(TASKS["addition"](), shortcut, length, count=192) <= 0.05
