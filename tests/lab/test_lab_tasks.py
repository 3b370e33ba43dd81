"""Tasks ask what they say they ask, the same of every encoding, and texts are split by file."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace

import pytest
import torch
from lab_cases import some_text

from ordinate.lab.config import RunConfig
from ordinate.lab.corpus import Corpus, bigram_loss, load_corpus
from ordinate.lab.tasks import IGNORED, TASKS, Addition, FlipFlop, Induction, Language, PassKey, Problem

PROBLEMS = [name for name in TASKS if name != "language"]


def read(tokens: torch.Tensor) -> str:
    return bytes(tokens.tolist()).decode()


def config_of(tokens: int, *lengths: int, train_length: int = 64) -> RunConfig:
    return RunConfig("none", evaluation_tokens=tokens, train_length=train_length, lengths=lengths)


def asked(task: Problem, length: int, count: int = 64, variant: str = "test") -> list[tuple[str, str]]:
    """Every test sequence as text, and the answers it asks for."""
    batch = task.test_sequences(config_of(count * length), length, variant)
    return [
        (read(tokens), read(targets[targets != IGNORED]))
        for tokens, targets in zip(batch.tokens, batch.targets, strict=True)
    ]


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_problem_has_the_length_asked_for_and_asks_something_of_every_sequence(name):
    task = TASKS[name]()
    for length in (task.minimum_length, task.minimum_length + 1, 3 * task.minimum_length):
        batch = task.test_sequences(config_of(10), length)
        assert batch.tokens.shape == batch.targets.shape == (64, length)
        assert ((batch.targets != IGNORED).sum(1) > 0).all()
        # What is asked for is the token that follows, unless the text ends there.
        targets, following = batch.targets[:, :-1], batch.tokens[:, 1:]
        ends = following == ord(" ")
        assert ((targets == IGNORED) | (targets == following) | ends).all()


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
        last = (batch.targets != IGNORED).any(0).nonzero().max().item()
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


def test_the_pass_key_is_hidden_once_at_every_depth_among_other_numbers():
    depths = []
    for text, answer in asked(TASKS["passkey"](), 200):
        assert text.count("key ") == 1
        assert f"key {answer}. " in text
        assert text.endswith(f"what is the key? {answer[:4]}")
        assert len(re.findall(r"(pin|tag|lot|zip) \d{5}\. ", text)) == 15
        depths.append(text.index("key ") / (200 - 32))
    assert min(depths) < 0.1
    assert max(depths) > 0.9


def test_induction_asks_for_what_followed_the_letter_a_block_before():
    sizes = set()
    for text, answer in asked(Induction(), 99):
        asks = len(answer)
        block = 99 - asks  # nothing is asked for in the first block, nor for the letter after it
        whole = text + answer[-1]
        assert len(set(whole)) == block  # no letter comes twice in a block, so there is one answer
        assert all(whole[at] == whole[at - block] for at in range(block, 100))
        assert answer == whole[block + 1 :]
        sizes.add(block)
    assert sizes == set(range(13, 27))


def test_a_flip_flop_reads_what_was_last_written_and_scores_first_reads_after_an_ignored_bit():
    scored = dict.fromkeys(("test", "all reads"), 0)
    for variant in scored:
        for text, answer in asked(FlipFlop(), 63, variant=variant):
            memory, expected, writes, reads, before = "", "", 0, 0, ""
            for instruction, bit in zip(text[::2], [*text[1::2], ""], strict=False):
                if instruction == "w":
                    memory = bit
                    writes, reads = writes + 1, 0
                elif instruction == "r":
                    assert bit in ("", memory)
                    reads += 1
                    if variant == "all reads" or (before == "i" and writes > 1 and reads == 1):
                        expected += memory
                before = instruction
            assert text[0] == "w"
            assert answer == expected
            scored[variant] += len(answer)
    assert 0.2 < scored["test"] / scored["all reads"] < 0.5


def counted_text(size: int) -> Corpus:
    """A text of which every byte but the last few is told from its neighbours by its number."""
    return Corpus(
        torch.zeros(100, dtype=torch.uint8), torch.arange(size).remainder(251).to(torch.uint8), 1, ""
    )


# Lengths that divide the longest, that do not, that are prime, just below it and just above half of it.
LENGTHS = (64, 96, 100, 128, 257, 300, 400, 509, 511, 512)


@pytest.mark.parametrize("length", LENGTHS)
def test_every_length_is_tested_on_the_same_bytes(length):
    task, config = Language(load_corpus()), config_of(8192, *LENGTHS)
    targets = task.test_sequences(config, 512).targets
    assert targets.shape == (16, 512)
    assert (targets != IGNORED).all()
    batch = task.test_sequences(config, length)
    assert torch.equal(batch.targets[batch.targets != IGNORED], targets.flatten())


@pytest.mark.parametrize("length", LENGTHS)
def test_every_position_is_tested_equally_often(length):
    config = config_of(50_000, *LENGTHS)
    targets = Language(counted_text(100_000)).test_sequences(config, length).targets
    times = (targets != IGNORED).sum(0)
    assert times.max() - times.min() <= 1


@pytest.mark.parametrize("length", LENGTHS)
def test_a_target_is_preceded_by_the_text_that_comes_before_it(length):
    batch = Language(counted_text(3000)).test_sequences(config_of(2048, *LENGTHS), length)
    asked = batch.targets != IGNORED
    for tokens, targets, row in zip(batch.tokens, batch.targets, asked, strict=True):
        last = row.nonzero().max().item()
        assert (tokens[: last + 1].diff().remainder(251) == 1).all()  # without a gap
        assert torch.equal(targets[row], (tokens[row] + 1).remainder(251))


def test_the_control_has_the_same_targets_each_with_exactly_the_training_length_before_it():
    config = config_of(4096, 8, 12, 64, train_length=8)
    task = Language(counted_text(100_000))
    tokens, targets = task.windows(config)
    assert tokens.shape == (4096 // 4, 8)
    assert (tokens.diff(dim=1).remainder(251) == 1).all()
    assert torch.equal(targets, (tokens[:, -1] + 1).remainder(251))
    everything = task.test_sequences(config, 64).targets
    chosen = task.controlled(config)
    assert torch.equal(targets, everything.gather(1, chosen).flatten())
    assert torch.equal(chosen[1], 1 + torch.arange(0, 64, 4))
    assert torch.equal(chosen.unique(), torch.arange(64))  # every place of a stretch, in one or another
    many = config_of(1 << 19, 64, train_length=8)
    assert task.controlled(replace(many, steps=10_000)).shape[1] == 64 // 8  # there are enough
    assert task.controlled(many).numel() <= many.steps * many.batch  # training has fewer


def test_tests_are_spread_over_the_whole_validation_text():
    batch = Language(counted_text(100_000)).test_sequences(config_of(1000, 100, train_length=50), 100)
    starts = batch.tokens[:, 0].tolist()
    assert starts[0] == 50 - 1  # the text before it is for the control
    assert starts[-1] == (100_000 - 101) % 251
    assert len(starts) == 10


def test_addition_is_tested_on_problems_that_training_never_has():
    task = Addition()
    pairs = torch.randint(0, 10, (20_000, 2, 6), generator=torch.Generator().manual_seed(0))
    assert task.held_out(pairs).double().mean() == pytest.approx(0.2, abs=0.01)
    for length in (5, 8):
        trained, tested = set(), set()
        for step in range(300):
            batch = task.training_batch(0, step, 16, length)
            trained.update(read(row).split("=")[0] for row in batch.tokens)
        tested.update(text.split("=")[0] for text, _ in asked(task, length, 500))
        assert len(tested) >= 15  # a fifth of the 100 pairs of digits
        assert not trained & tested
    assert {f"{a}+{b}" for a in range(10) for b in range(10)} <= trained | {
        text.split("=")[0] for text, _ in asked(task, 5, 500)
    }


def test_flip_flops_come_sparse_and_dense():
    shares = {}
    for variant in ("test", *FlipFlop.variants):
        texts = "".join(text for text, _ in asked(FlipFlop(), 512, variant=variant))
        shares[variant] = texts[::2].count("i") / (len(texts) / 2)
    drawn = (256 - 4) / 256  # of 256 instructions two writes, an ignored one and a read are given
    assert shares == {
        "test": pytest.approx(0.8, abs=0.02),
        "all reads": pytest.approx(0.8, abs=0.02),
        "sparse": pytest.approx(0.98 * drawn, abs=0.01),
        "dense": pytest.approx(0.1, abs=0.02),
    }


def test_pass_keys_are_hidden_in_the_quarter_asked_for():
    for quarter, variant in enumerate(PassKey.variants):
        depths = [
            text.index("key ") / (472 - 32) for text, _ in asked(PassKey(), 472, variant=variant)
        ]  # 41 numbers
        assert 0.25 * quarter - 0.03 < min(depths) < 0.25 * quarter + 0.05
        assert 0.25 * quarter + 0.2 < max(depths) <= 0.25 * (quarter + 1)


def test_the_baseline_of_induction_is_what_is_known_without_looking_back():
    task = Induction()
    loss, right, count = 0.0, 0.0, 0
    for text, answer in asked(task, 100, 256):
        for at, given in enumerate(answer, len(text) - len(answer) + 1):
            counts = Counter(text[:at])
            least = [letter for letter in counts if counts[letter] == min(counts.values())]
            assert given in least
            loss += math.log(len(least))
            right += 1 / len(least)
            count += 1
    found = task.baseline(task.test_sequences(config_of(256 * 100), 100))
    assert found.loss == pytest.approx(loss / count)
    assert found.accuracy == pytest.approx(right / count)
    assert found.loss < math.log(26) - 0.3


def test_the_baseline_of_pass_keys_is_any_of_the_numbers():
    found = PassKey().baseline(PassKey().test_sequences(config_of(100 * 130), 130))
    assert found.accuracy == pytest.approx(1 / 9)
    assert found.loss == pytest.approx(math.log(9) / 5)


def test_the_baseline_of_flip_flops_is_how_often_each_bit_has_come():
    task = FlipFlop()
    loss, right, count = 0.0, 0.0, 0
    batch = task.test_sequences(config_of(64 * 40), 40)
    for tokens, targets in zip(batch.tokens, batch.targets, strict=True):
        text = read(tokens)
        for at in (targets != IGNORED).nonzero()[:, 0].tolist():
            given, seen = chr(targets[at]), text[: at + 1]
            same, other = seen.count(given), seen.count("0" if given == "1" else "1")
            loss -= math.log((same + 1) / (same + other + 2))
            right += 0.5 * ((same > other) + (same >= other))
            count += 1
    found = task.baseline(batch)
    assert found.loss == pytest.approx(loss / count)
    assert found.accuracy == pytest.approx(right / count)


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
