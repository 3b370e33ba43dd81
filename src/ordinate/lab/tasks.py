"""The tasks that a model learns: text, or small problems whose answer is known.

A batch has tokens and, for each, the next token as target; a target of -1 is ignored. Every batch is determined by the
seed and the step, so all encodings see the same batches in the same order, and a resumed run restores no
random generator.

Answers are scored with the right answer so far as input. For exact match that equals greedy generation: up to its first
mistake the model would see the same tokens.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Generator, Tensor

from ..checks import refused
from ..text import Text
from .config import RunConfig
from .corpus import Corpus, bigram_loss
from .seeds import generator

#: The target of a token whose successor is not scored, as PyTorch's ``ignore_index``.
IGNORED = -1

#: Each length is tested on at least this many sequences of a problem.
FEWEST_TESTS = 64


class Batch(NamedTuple):
    tokens: Int[Tensor, "batch seq"]
    targets: Int[Tensor, "batch seq"]


class Baseline(NamedTuple):
    """The result without a model: the loss, and the share of right answers for tasks that have answers."""

    name: str
    loss: float
    accuracy: float | None = None


class Task(ABC):
    """A task that a model learns at one length and is tested on at other lengths."""

    #: The shortest sequence that can hold the task.
    minimum_length: int
    #: How answers are counted: complete answers, single tokens, or not at all (the loss is the measure).
    measure: Literal["exact match", "accuracy"] | None

    @abstractmethod
    def training_batch(self, seed: int, step: int, batch: int, length: int) -> Batch: ...

    @abstractmethod
    def test_sequences(self, config: RunConfig, length: int) -> Batch:
        """All test sequences of a length."""

    @abstractmethod
    def baseline(self, tests: Batch) -> Baseline:
        """The result without a model; a model that is no better has learned nothing."""


class Language(Task):
    """Predict the next byte of a text.

    Every length is tested on the same bytes: stretches of the longest length, spread evenly over the validation text.
    The stretches are concatenated and cut into sequences of the tested length. A sequence that starts in one stretch
    and ends in the next is tested twice: its first part at the end of the one stretch, its last part at the start of
    the next, there after the text that really precedes it. So every position is tested equally often, even if the
    length does not divide the longest one, and only the length changes the loss.
    """

    minimum_length = 8
    measure = None

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus

    def training_batch(self, seed: int, step: int, batch: int, length: int) -> Batch:
        last = len(self.corpus.train) - length - 1
        starts = torch.randint(0, last + 1, (batch, 1), generator=generator("train", seed, step))
        text = self.corpus.train[starts + torch.arange(length + 1)].long()
        return Batch(text[:, :-1], text[:, 1:])

    def stretches(self, config: RunConfig) -> Int[Tensor, " stretches"]:
        """The start of each stretch of the longest length in the validation text."""
        longest, first = max(config.lengths), _lead(config.train_length, config.lengths)
        last = len(self.corpus.validation) - longest - 1
        count = max(1, min(config.evaluation_tokens, last - first + longest) // longest)
        return torch.linspace(first, last, count, dtype=torch.float64).long()

    def test_sequences(self, config: RunConfig, length: int) -> Batch:
        """Sequences whose targets, row by row and without ignored ones, are those of one stretch after the other."""
        longest, text = max(config.lengths), self.corpus.validation.long()
        begins, firsts = [], []
        for number, first in enumerate(self.stretches(config).tolist()):
            laid = number * longest  # the start of this stretch in their concatenation
            for cut in range(laid // length * length, laid + longest, length):
                begins.append(first + cut - laid)
                firsts.append(first)
        at = torch.tensor(begins)[:, None] + torch.arange(length)
        asked = (at >= torch.tensor(firsts)[:, None]) & (at < torch.tensor(firsts)[:, None] + longest)
        at.clamp_(max=len(text) - 2)  # targets after the last stretch are ignored
        return Batch(text[at], torch.where(asked, text[at + 1], IGNORED))

    def controlled(self, config: RunConfig) -> Int[Tensor, "stretches targets"]:
        """The indices of the targets with a control, different ones in each stretch."""
        # A control costs a training length of tokens. So the number of controls is the least of a quarter of the
        # targets, 65536 and the number of training sequences, but at least one per stretch.
        most = min(65536, config.steps * config.batch)
        every = min(max(4, -(-config.evaluation_tokens // most)), max(config.lengths))
        shift = torch.arange(len(self.stretches(config)))[:, None] % every
        return shift + torch.arange(0, max(config.lengths) - every + 1, every)

    def windows(
        self, config: RunConfig
    ) -> tuple[Int[Tensor, "targets window"], Int[Tensor, " targets"]]:
        """For each controlled target, exactly a training length of tokens before it, and the target."""
        at = (self.stretches(config)[:, None] + self.controlled(config)).flatten()
        text = self.corpus.validation.long()
        return text[at[:, None] + torch.arange(1 - config.train_length, 1)], text[at + 1]

    def baseline(self, tests: Batch) -> Baseline:
        asked = tests.targets != IGNORED
        return Baseline(
            "byte bigram", bigram_loss(self.corpus, tests.targets[asked], tests.tokens[asked])
        )

    def check_lengths(self, train_length: int, lengths: tuple[int, ...]) -> None:
        """Check that the text is longer than the sequences that are cut from it."""
        for name, part, length in (
            ("training", self.corpus.train, train_length),
            ("validation", self.corpus.validation, _lead(train_length, lengths) + max(lengths)),
        ):
            if len(part) <= length:
                raise refused(
                    "text",
                    "must have more than {length} bytes for {part} at the lengths asked for",
                    len(part),
                    length=length,
                    part=Text(name),
                )


def _lead(train_length: int, lengths: Sequence[int]) -> int:
    """How many bytes before a stretch its first targets may need."""
    return max(train_length, *(length for length in lengths if max(lengths) % length), 0) - 1


class Problem(Task):
    """Random sequences with a question and an answer.

    Training draws variant ``"training"``, the main test ``"test"``; most problems draw both from the same
    distribution, in which a sequence hardly ever repeats.
    """

    #: The number of possible tokens of an answer; the loss of guessing is its logarithm.
    choices: int
    #: Further test sets, by name.
    variants: tuple[str, ...] = ()

    @abstractmethod
    def sample(self, rng: Generator, batch: int, length: int, variant: str) -> tuple[Tensor, Tensor]:
        """Texts of at most ``length + 1`` bytes, and which bytes are scored."""

    def training_batch(self, seed: int, step: int, batch: int, length: int) -> Batch:
        """Problems of random size up to the length, one size per batch."""
        rng = generator("train", seed, step)
        size = int(torch.randint(self.minimum_length, length + 1, (), generator=rng))
        return _padded(*self.sample(rng, batch, size, "training"), length)

    def test_sequences(self, config: RunConfig, length: int, variant: str = "test") -> Batch:
        count = max(FEWEST_TESTS, config.evaluation_tokens // length // (1 if variant == "test" else 4))
        return _padded(*self.sample(generator(variant, length), count, length, variant), length)

    def baseline(self, tests: Batch) -> Baseline:
        answer = 1 if self.measure == "accuracy" else (tests.targets != IGNORED).sum(1).min().item()
        return Baseline("guessing", math.log(self.choices), self.choices**-answer)


class Copy(Problem):
    """Letters, then the same letters: ``"qxvd=qxvd"``."""

    minimum_length = 2
    measure = "exact match"
    choices = 26

    def sample(self, rng: Generator, batch: int, length: int, variant: str) -> tuple[Tensor, Tensor]:
        letters = torch.randint(ord("a"), ord("z") + 1, (batch, length // 2), generator=rng)
        return _question_and_answer([letters], self.answer(letters))

    def answer(self, letters: Tensor) -> Tensor:
        return letters


class Reverse(Copy):
    """Letters, then the same letters from the last to the first: ``"qxvd=dvxq"``."""

    def answer(self, letters: Tensor) -> Tensor:
        return letters.flip(1)


class Addition(Problem):
    """Two numbers of equally many digits and their sum, ones first, in the order of carries: ``"47+85=231"``.

    A model that adds without carries, or carries by one place only, gets no answer of three digits or more right, and
    longer numbers have longer carries. A fifth of all pairs of numbers is in no training batch, and tests use only
    these pairs.
    """

    minimum_length = 5
    measure = "exact match"
    choices = 10

    def sample(self, rng: Generator, batch: int, length: int, variant: str) -> tuple[Tensor, Tensor]:
        digits = (length - 2) // 3
        drawn = torch.empty(0, 2, digits, dtype=torch.long)
        while len(drawn) < batch:
            more = self.numbers(rng, 2 * batch, digits)
            drawn = torch.cat((drawn, more[self.held_out(more) == (variant != "training")]))
        one, two = drawn[:batch].unbind(1)
        carry, answer = torch.zeros(batch, dtype=torch.long), []
        for place in reversed(range(digits)):
            total = one[:, place] + two[:, place] + carry
            answer.append(total % 10)
            carry = total // 10
        answer.append(carry)
        zero, plus = ord("0"), torch.full((batch, 1), ord("+"))
        return _question_and_answer([one + zero, plus, two + zero], torch.stack(answer, dim=1) + zero)

    @staticmethod
    def numbers(rng: Generator, count: int, digits: int) -> Int[Tensor, "count two digits"]:
        """Pairs of numbers with long carries: in half to nine tenths of their places the digits sum to 9."""
        one, two = torch.randint(0, 10, (2, count, digits), generator=rng)
        nine = torch.rand(count, digits, generator=rng) < 0.5 + 0.4 * torch.rand(count, 1, generator=rng)
        nine[:, -1] = False  # the ones get no carry
        if (
            digits > 2
        ):  # a carry starts at a random place, and at least half of the places before it pass it on
            at, begins = torch.arange(digits), torch.randint(2, digits, (count, 1), generator=rng)
            ends = (begins * 0.5 * torch.rand(count, 1, generator=rng)).ceil()
            one = torch.where(at == begins, one.clamp(min=1), one)
            two = torch.where(at == begins, torch.maximum(two, 10 - one), two)
            nine = (nine & (at != begins)) | ((ends <= at) & (at < begins))
        return torch.stack((one, torch.where(nine, 9 - one, two)), dim=1)

    @staticmethod
    def held_out(numbers: Int[Tensor, "batch two digits"]) -> Bool[Tensor, " batch"]:
        """Whether a pair of numbers is only for tests: by a hash of its digits, so that no list is needed."""
        mixed = torch.full(numbers.shape[:1], 2166136261)
        for digit in numbers.flatten(1).unbind(1):  # FNV-1a, 32 bits
            mixed = ((mixed ^ digit) * 16777619) & 0xFFFFFFFF
        return (mixed >> 16) % 5 == 0


class PassKey(Problem):
    """A number hidden among others, asked for at the end: ``"pin 70365. key 48213. …what is the key? 48213"``.

    The protocol of landmark attention (arXiv:2305.16300) for models of bytes, with other numbers instead of filler
    text, so that a model that only looks for digits finds wrong ones. Each variant hides the key in one quarter of the
    text.
    """

    measure = "exact match"
    choices = 10
    _NAMES = (b"pin", b"tag", b"lot", b"zip")
    _NUMBER = b"%s %05d. "
    _QUESTION = b"what is the key? "
    _EACH = len(_NUMBER % (b"key", 0))
    minimum_length = _EACH + len(_QUESTION) + 5 - 1
    variants = ("first quarter", "second quarter", "third quarter", "last quarter")

    def sample(self, rng: Generator, batch: int, length: int, variant: str) -> tuple[Tensor, Tensor]:
        room = length - self.minimum_length + self._EACH
        count = room // self._EACH
        first, stop = 0, count
        if variant in self.variants:
            quarter = self.variants.index(variant)
            first = quarter * count // 4
            stop = max(first + 1, (quarter + 1) * count // 4)
        numbers = torch.randint(0, 100_000, (batch, count), generator=rng).tolist()
        names = torch.randint(0, len(self._NAMES), (batch, count), generator=rng).tolist()
        places = torch.randint(first, stop, (batch,), generator=rng).tolist()
        texts = []
        for named, numbered, place in zip(names, numbers, places, strict=True):
            each = [self._NAMES[name] for name in named]
            each[place] = b"key"
            lines = b"".join(self._NUMBER % pair for pair in zip(each, numbered, strict=True))
            texts.append(lines.rjust(room) + self._QUESTION + b"%05d" % numbered[place])
        text = torch.tensor([list(each) for each in texts])
        return text, _at_end(text, 5)

    def baseline(self, tests: Batch) -> Baseline:
        """The baseline of answering with any number in the text, the best guess without reading their names."""
        numbers = (tests.tokens == ord(".")).sum(1).double()
        return Baseline(
            "one of the numbers", (numbers.log() / 5).mean().item(), (1 / numbers).mean().item()
        )


class Induction(Problem):
    """A block of different letters repeated, ``"qxvdqxvdqx…"``: which letter followed this one before?

    The blocks are random for every sequence, so only the earlier tokens have the answer (arXiv:2209.11895), and no
    letter is twice in a block, so there is one answer. Blocks have 13 to 26 letters at every length that fits two of
    them: only the positions of tokens change with the length. Scored from the second repeated letter on.
    """

    minimum_length = 8
    measure = "accuracy"
    choices = 26

    def sample(self, rng: Generator, batch: int, length: int, variant: str) -> tuple[Tensor, Tensor]:
        longest = min(26, length // 2)
        block = torch.randint(longest // 2, longest + 1, (batch, 1), generator=rng)
        letters = ord("a") + torch.rand(batch, 26, generator=rng).argsort(1)
        at = torch.arange(length + 1)
        return letters.gather(1, at % block), at > block

    def baseline(self, tests: Batch) -> Baseline:
        """The baseline of guessing among the least frequent letters, the best guess without their positions."""
        asked = tests.targets != IGNORED
        counts = torch.nn.functional.one_hot(tests.tokens - ord("a"), 26).cumsum(1)[asked]
        counts[counts == 0] = tests.tokens.shape[1]
        possible = (counts == counts.min(1, keepdim=True).values).sum(1).double()
        return Baseline(
            "letters that came least", possible.log().mean().item(), (1 / possible).mean().item()
        )


class FlipFlop(Problem):
    """One bit of memory: write it, ignore others, read it back: ``"w1i0i1r1"`` (arXiv:2306.00946).

    A tenth of the instructions write, a tenth read, the others must be ignored. Training scores every read. Tests score
    the first read after a write, if it directly follows an ignored bit and is after a second write: there the last bit,
    the last bit read and the first bit are each right half the time. Other reads are easier: after a write the last bit
    is the answer, and after another read its bit. Variants score all reads, ignore more (98 %: the last write is
    distant) and less (10 %: there are many other writes).
    """

    minimum_length = 16
    measure = "accuracy"
    choices = 2
    variants = ("all reads", "sparse", "dense")

    def sample(self, rng: Generator, batch: int, length: int, variant: str) -> tuple[Tensor, Tensor]:
        pairs = (length + 1) // 2
        bits = torch.randint(0, 2, (batch, pairs), generator=rng)
        drawn = torch.rand(batch, pairs, generator=rng)
        second = torch.randint(1, pairs - 2, (batch, 1), generator=rng)
        drawn.scatter_(1, second, 0.0)  # so that the first write is not the last
        drawn[:, 0], drawn[:, -2], drawn[:, -1] = 0.0, 0.5, 1.0  # write, …, ignore, read
        each = (1 - {"sparse": 0.98, "dense": 0.1}.get(variant, 0.8)) / 2
        writes, reads = drawn < each, drawn >= 1 - each
        last_write = (writes * torch.arange(pairs)).cummax(1).values
        scored = variant not in ("training", "all reads")
        if scored:  # remove reads after the last write, so that the read at the end is the first one
            reads[:, :-1] &= last_write[:, :-1] != last_write[:, -1:]
        bits = torch.where(reads, bits.gather(1, last_write), bits)
        instructions = torch.full_like(bits, ord("i"))
        instructions[writes], instructions[reads] = ord("w"), ord("r")
        asked = reads
        if scored:
            after_ignored = torch.nn.functional.pad(~writes & ~reads, (1, -1))
            count = reads.cumsum(1)
            first = count - count.gather(1, last_write) == 1
            asked = reads & first & after_ignored & (last_write > 0)
        text = torch.stack((instructions, bits + ord("0")), dim=2).flatten(1)
        return text, torch.stack((torch.zeros_like(asked), asked), dim=2).flatten(1)

    def baseline(self, tests: Batch) -> Baseline:
        """The baseline of guessing by the frequency of each bit, the best guess without reading the instructions."""
        asked = tests.targets != IGNORED
        bits = torch.stack([tests.tokens == ord(bit) for bit in "01"], dim=2)
        counts = bits.cumsum(1)[asked].double()
        answers = (tests.targets[asked] - ord("0"))[:, None]
        share = (counts.gather(1, answers) + 1) / (counts.sum(1, keepdim=True) + 2)
        right = torch.where(share == 0.5, 0.5, (share > 0.5).double())
        return Baseline("bits so far", -share.log().mean().item(), right.mean().item())


#: Name → class. `Language` takes a corpus, the others nothing.
TASKS: dict[str, type[Task]] = {
    "language": Language,
    "passkey": PassKey,
    "copy": Copy,
    "reverse": Reverse,
    "addition": Addition,
    "induction": Induction,
    "flipflop": FlipFlop,
}


def _question_and_answer(question: list[Tensor], answer: Tensor) -> tuple[Tensor, Tensor]:
    text = torch.cat((*question, torch.full((answer.shape[0], 1), ord("=")), answer), dim=1)
    return text, _at_end(text, answer.shape[1])


def _at_end(text: Tensor, count: int) -> Tensor:
    """The mask of scored bytes if these are the last ``count`` of each text."""
    return (torch.arange(text.shape[1]) >= text.shape[1] - count).expand_as(text)


def _padded(text: Tensor, asked: Tensor, length: int) -> Batch:
    """Tokens and targets of one length, padded with spaces whose targets are ignored."""
    tokens = torch.full((text.shape[0], length), ord(" "))
    targets = torch.full_like(tokens, IGNORED)
    filled = text.shape[1] - 1
    tokens[:, :filled] = text[:, :-1]
    targets[:, :filled] = torch.where(asked[:, 1:], text[:, 1:], IGNORED)
    return Batch(tokens, targets)
