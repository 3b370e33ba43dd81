"""Tasks ask what they say they ask, the same of every encoding, and texts are split by file."""

from __future__ import annotations

import math

import pytest
import torch
from lab_cases import some_text

from ordinate.lab.corpus import Corpus, bigram_loss, load_corpus
from ordinate.lab.tasks import TASKS, UNASKED, Language, Problem

PROBLEMS = [name for name in TASKS if name != "language"]


def read(tokens: torch.Tensor) -> str:
    return bytes(tokens.tolist()).decode()


def asked(task: Problem, length: int, count: int = 64) -> list[tuple[str, str]]:
    """Every test sequence as text, and the answers it asks for."""
    batch = task.test_sequences(count * length, length, length)
    return [
        (read(tokens), read(targets[targets != UNASKED]))
        for tokens, targets in zip(batch.tokens, batch.targets, strict=True)
    ]


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_problem_has_the_length_asked_for_and_asks_something_of_every_sequence(name):
    task = TASKS[name]()
    for length in (task.minimum_length, task.minimum_length + 1, 3 * task.minimum_length):
        batch = task.test_sequences(10, length, length)
        assert batch.tokens.shape == batch.targets.shape == (64, length)
        assert ((batch.targets != UNASKED).sum(1) > 0).all()
        # What is asked for is the token that follows, unless the text ends there.
        targets, following = batch.targets[:, :-1], batch.tokens[:, 1:]
        ends = following == ord(" ")
        assert ((targets == UNASKED) | (targets == following) | ends).all()


@pytest.mark.parametrize("name", list(TASKS))
def test_a_batch_follows_from_seed_and_step_alone(name):
    task = Language(load_corpus()) if name == "language" else TASKS[name]()
    torch.manual_seed(1)
    one = task.training_batch(3, 8, 4, 80)
    torch.manual_seed(2)
    two = task.training_batch(3, 8, 4, 80)
    assert torch.equal(one.tokens, two.tokens)
    for seed, step in ((3, 9), (4, 8)):
        assert not torch.equal(task.training_batch(seed, step, 4, 80).tokens, one.tokens)


@pytest.mark.parametrize("name", PROBLEMS)
def test_training_sees_every_size_up_to_its_length_and_none_beyond(name):
    task = TASKS[name]()
    length = task.minimum_length + 20
    spaces = set()
    for step in range(200):
        batch = task.training_batch(0, step, 2, length)
        assert batch.tokens.shape == (2, length)
        last = (batch.targets != UNASKED).any(0).nonzero().max().item()
        spaces.add(last)
    assert max(spaces) >= length - 3
    assert min(spaces) <= task.minimum_length + 2


def test_copy_and_reverse():
    for text, answer in asked(TASKS["copy"](), 20):
        question = text[:10]
        assert (text[10], answer) == ("=", question)
    for text, answer in asked(TASKS["reverse"](), 20):
        assert answer == text[:10][::-1]


def test_addition_adds():
    for text, answer in asked(TASKS["addition"](), 32):
        one, two = (int(number) for number in text.split("=")[0].split("+"))
        assert answer[::-1] == f"{one + two:011d}"


def test_the_pass_key_is_hidden_once_at_every_depth():
    depths = []
    for text, answer in asked(TASKS["passkey"](), 200):
        assert text.count("the key is ") == 1
        assert f"the key is {answer}. " in text
        assert text.endswith(f"what is the key? {answer[:4]}")
        depths.append(text.index("the key is ") / (200 - 39))
    assert min(depths) < 0.1
    assert max(depths) > 0.9


def test_induction_asks_for_what_followed_the_letter_before():
    for text, answer in asked(TASKS["induction"](), 99):
        known, expected = {}, ""
        for key, value in zip(text[::2], [*text[1::2], ""], strict=False):
            if key in known:
                expected += known[key]
                assert value in ("", known[key])
            elif value:
                known[key] = value
        assert answer == expected


def test_a_flip_flop_reads_what_was_last_written():
    for text, answer in asked(TASKS["flipflop"](), 63):
        memory, expected = "", ""
        for instruction, bit in zip(text[::2], [*text[1::2], ""], strict=False):
            if instruction == "w":
                memory = bit
            elif instruction == "r":
                expected += memory
                assert bit in ("", memory)
        assert text[0] == "w"
        assert answer == expected


def test_every_length_is_tested_on_the_same_bytes():
    task = Language(load_corpus())
    short, long = (task.test_sequences(8192, length, 512) for length in (64, 512))
    assert torch.equal(short.targets.flatten(), long.targets.flatten())
    odd = task.test_sequences(8192, 100, 512)
    assert torch.equal(odd.targets.view(-1, 500), long.targets[:, :500])
    assert torch.equal(short.tokens[:, 1:], short.targets[:, :-1])


def test_tests_are_spread_over_the_whole_validation_text():
    corpus = load_corpus()
    marked = Corpus(corpus.train, torch.arange(100_000).remainder(251).to(torch.uint8), 1, "")
    batch = Language(marked).test_sequences(1000, 100, 100)
    starts = batch.tokens[:, 0].tolist()
    assert starts[0] == 0
    assert starts[-1] == (100_000 - 101) % 251
    assert len(starts) == 10


def test_pythons_library_is_text_in_two_parts_that_share_no_file():
    corpus = load_corpus()
    assert len(corpus.train) > 2_000_000
    assert 0.08 < len(corpus.validation) / (len(corpus.train) + len(corpus.validation)) < 0.2
    train = bytes(corpus.train.numpy())
    validation = bytes(corpus.validation.numpy())
    assert b"def " in train
    assert validation[1000:1200] not in train
    assert load_corpus().fingerprint == corpus.fingerprint


def test_files_are_split_whole_and_one_file_is_cut(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(10):
        (folder / f"{number}.txt").write_text(f"{number}" * 100)
    corpus = load_corpus((str(folder),))
    train, validation = (set(bytes(part.numpy()).decode()) for part in (corpus.train, corpus.validation))
    assert train & validation <= {"\n"}
    assert len(train | validation) >= 10
    single = load_corpus((str(folder / "3.txt"),))
    assert (len(single.train), len(single.validation), single.files) == (90, 10, 1)


def test_folders_are_read_without_what_is_no_text(tmp_path):
    text = some_text(tmp_path)
    before = load_corpus((text,))
    load_corpus.cache_clear()
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0\0")
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / ".hidden").write_text("not this")
    assert load_corpus((text,)).fingerprint == before.fingerprint
    load_corpus.cache_clear()
    (tmp_path / "three.txt").write_text("something more")
    assert load_corpus((text,)).fingerprint != before.fingerprint


def test_the_bigram_baseline_is_the_entropy_where_it_is_known():
    # Bytes 0 and 1 drawn at random: a table of pairs can do no better than ln 2, and no worse.
    bits = torch.randint(0, 2, (200_000,), dtype=torch.uint8)
    corpus = Corpus(bits[:100_000], bits[100_000:], 1, "")
    loss = bigram_loss(corpus, corpus.validation[1:], corpus.validation[:-1])
    assert loss == pytest.approx(math.log(2), abs=1e-3)
    # A byte that always follows another costs nothing.
    cycle = torch.arange(100_000).remainder(7).to(torch.uint8)
    corpus = Corpus(cycle, cycle, 1, "")
    assert bigram_loss(corpus, cycle[1:], cycle[:-1]) < 1e-3
