"""What is measured of a trained model is what the records say it is."""

from __future__ import annotations

import pytest
import torch
from lab_cases import numbers, some_text, tiny
from torch import nn

import ordinate
from ordinate.lab.cost import added_cost, parameters_of, training_memory
from ordinate.lab.evaluate import _by_position, evaluate, refusal, validation_loss
from ordinate.lab.model import Transformer, token_losses
from ordinate.lab.tasks import UNASKED
from ordinate.lab.train import make_encoding, make_model, make_task, train_and_evaluate


@pytest.fixture
def language(tmp_path):
    """A model that has learned nothing, and its text."""
    text = some_text(tmp_path / "text")
    config = tiny(task="language", text=(text,), evaluation_tokens=512, lengths=(8, 16, 32, 64))
    return make_model(config), make_task(config), config


class Counting(Transformer):
    """A model that is better the more it sees: its logits of the target grow with the position."""

    def __init__(self, limit: int) -> None:
        super().__init__(ordinate.NoPE(), d_model=16, num_layers=1, num_heads=2)
        self.limit = limit

    def forward(self, tokens):
        position = torch.arange(tokens.shape[1]).clamp(max=self.limit).float()
        logits = torch.zeros(*tokens.shape, 256)
        logits += position[None, :, None] * torch.arange(256) / 256
        return logits


def test_the_loss_is_the_cross_entropy_of_every_token(language):
    model, task, config = language
    measured = evaluate(model, task, config, 32)
    batch = task.test_sequences(512, 32, 64)
    with torch.no_grad():
        expected = nn.functional.cross_entropy(model(batch.tokens).mT, batch.targets, reduction="none")
    assert measured["loss"] == pytest.approx(expected.mean().item(), rel=1e-6)
    assert measured["last_loss"] == pytest.approx(expected[:, -4:].mean().item(), rel=1e-6)
    error = expected.mean(1).double().std().item() / len(expected) ** 0.5
    assert measured["loss_error"] == pytest.approx(error, rel=1e-5)
    assert measured["accuracy"] is None


def test_the_loss_by_position_covers_every_position_once_and_averages_to_the_loss(language):
    model, task, config = language
    measured = evaluate(model, task, config, 64)
    edges = [(start, stop) for start, stop, _ in measured["positions"]]
    assert [start for start, _ in edges] == [0, *(stop for _, stop in edges[:-1])]
    assert edges[-1][1] == 64
    assert 8 in (start for start, _ in edges)  # the training length
    mean = sum((stop - start) * loss for start, stop, loss in measured["positions"]) / 64
    assert mean == pytest.approx(measured["loss"], rel=1e-6)


def test_bins_stay_few_at_any_length():
    bins = _by_position(torch.ones(1, 5000), torch.ones(1, 5000, dtype=torch.bool), 8)
    assert len(bins) <= 128
    assert bins[-1][1] == 5000


def test_the_windowed_loss_is_that_of_the_same_targets_with_a_training_length_of_context(language):
    model, task, config = language
    measured = evaluate(model, task, config, 32)
    batch = task.test_sequences(512, 32, 64)
    expected, count = 0.0, 0
    for target in range(32):  # one target at a time, its window as the docstring describes it
        start = 0 if target < 8 else min((target - 4) // 4 * 4, 24)
        assert 4 <= target - start < 8 or target < 8
        with torch.no_grad():
            logits = model(batch.tokens[:, start : target + 1])[:, -1]
        loss = nn.functional.cross_entropy(logits, batch.targets[:, target], reduction="sum")
        expected, count = expected + loss.item(), count + len(batch.tokens)
    assert measured["windowed_loss"] == pytest.approx(expected / count, rel=1e-5)


def test_at_the_training_length_the_window_cuts_nothing(language):
    model, task, config = language
    measured = evaluate(model, task, config, 8)
    assert measured["windowed_loss"] == pytest.approx(measured["loss"], rel=1e-6)


def test_a_model_that_uses_more_context_is_below_its_windowed_loss(language):
    _, task, config = language
    uses, ignores = Counting(1000), Counting(3)
    for model, sign in ((uses, 1), (ignores, 0)):
        measured = evaluate(model, task, config, 64)
        gain = abs(measured["windowed_loss"] - measured["loss"])
        assert (gain > 0.1) == bool(sign)


def test_an_encoding_that_declines_a_length_is_quoted_and_has_no_numbers():
    config = tiny("learned")
    measured = evaluate(make_model(config), make_task(config), config, 16)
    assert measured["refused"] == "positions must be in 0 … 7 (max_positions=8), got 15"
    assert [measured[name] for name in ("loss", "last_loss", "accuracy")] == [None] * 3
    assert refusal(make_encoding("learned", config), config, 8) is None


def test_an_error_of_ours_is_not_taken_for_a_refusal(monkeypatch):
    config = tiny()
    model = make_model(config)
    monkeypatch.setattr(Transformer, "forward", lambda *_: (_ for _ in ()).throw(ValueError("a bug")))
    with pytest.raises(ValueError, match="a bug"):
        evaluate(model, make_task(config), config, 16)


class Oracle(Transformer):
    """Answers the copy task, but for the last letter of every second sequence."""

    def __init__(self, batch) -> None:
        super().__init__(ordinate.NoPE(), d_model=16, num_layers=1, num_heads=2)
        self.batch = batch

    def forward(self, tokens):
        rows = [(self.batch.tokens == row).all(1).nonzero()[0, 0] for row in tokens]
        answers = self.batch.targets[torch.stack(rows)].clamp(min=0).clone()
        answers[::2, -1] = 0
        return nn.functional.one_hot(answers, 256).float() * 50


@pytest.mark.parametrize(("task", "expected"), [("copy", 0.5), ("flipflop", None)])
def test_exact_match_counts_whole_answers_and_accuracy_single_tokens(task, expected):
    config = tiny(task=task, lengths=(16, 32), train_length=16, evaluation_tokens=64)
    given = make_task(config)
    batch = given.test_sequences(64, 32, 32)
    measured = evaluate(Oracle(batch), given, config, 32)
    if expected is None:
        asked = batch.targets != UNASKED
        wrong = asked[::2, -1].float() / asked[::2].sum(1)
        expected = 1 - wrong.sum().item() / len(asked)
    assert measured["accuracy"] == pytest.approx(expected)
    assert measured["windowed_loss"] is None


def test_untested_tokens_carry_no_loss():
    logits = torch.randn(2, 5, 256)
    targets = torch.tensor([[1, 2, UNASKED, 4, UNASKED], [UNASKED] * 5])
    losses = token_losses(logits, targets)
    assert (losses[targets == UNASKED] == 0).all()
    assert (losses[targets != UNASKED] > 0).all()


def test_a_trained_rope_is_tested_with_scalings_and_nothing_else_is(tmp_path):
    extensions = ("linear:factor=2", "dynamic:factor=1")
    train_and_evaluate(tiny("rope", extensions=extensions), tmp_path / "rope")
    tests = [line for line in numbers(tmp_path / "rope") if line["kind"] == "evaluation"]
    found = [(line["extension"], line["length"]) for line in tests]
    assert found == [(name, length) for name in (None, *extensions) for length in (8, 16)]
    plain, linear, dynamic = (
        {line["length"]: line["loss"] for line in tests[i : i + 2]} for i in (0, 2, 4)
    )
    assert linear[16] != plain[16]
    assert dynamic[8] == plain[8]  # in length, dynamic scaling does nothing
    for spec in ("alibi", "rope+yarn:factor=4"):
        train_and_evaluate(tiny(spec, extensions=extensions), tmp_path / spec)
        tests = [line for line in numbers(tmp_path / spec) if line["kind"] == "evaluation"]
        assert {line["extension"] for line in tests} == {None}


def test_validation_is_at_the_training_length(language):
    model, task, config = language
    loss = validation_loss(model, task, config)
    assert loss == pytest.approx(evaluate(model, task, config, 8)["loss"], rel=0.2)


COSTS = [  # spec, operations and bytes of a token, d_model 16, 2 heads, 3 layers, length 8: by hand
    ("none", 0, 0),
    ("sinusoidal", 16, 4 * 16 - 0),
    ("learned", 16, 4 * 16),
    ("rope", 3 * 2 * 16 * 3, 4 * 8 * 3),
    ("rope:rotary_dim=4", 3 * 2 * 8 * 3, 4 * 4 * 3),
    ("alibi", 2 * 2 * 4.5 * 3, 4 * 2 / 8 * 3),
    ("clipped:max_distance=3", 2 * 4.5 * 3, 4 * 2 * 7 / 8 * 3),
]


@pytest.mark.parametrize(("spec", "operations", "moved"), COSTS, ids=[case[0] for case in COSTS])
def test_what_an_encoding_adds_is_counted(spec, operations, moved):
    config = tiny(spec, num_layers=3)
    counted = added_cost(make_encoding(spec, config), config)
    # The code of the last position may leave a channel as it is: sin and cos have zeros.
    assert counted == (pytest.approx(operations, abs=1), pytest.approx(moved, abs=4))


def test_parameters_are_counted_and_memory_grows_with_the_batch(tmp_path):
    config = tiny("learned")
    model = make_model(config)
    assert parameters_of(model.encoding) == 8 * 16
    assert (
        parameters_of(model) == 256 * 16 * 2 + 3 * 16 * 16 + 16 * 16 + 2 * 4 * 16 * 16 + 3 * 16 + 8 * 16
    )
    few, many = (torch.zeros(count, 8, dtype=torch.long) for count in (2, 4))
    small, large = (training_memory(model, tokens, tokens) for tokens in (few, many))
    assert small >= 4 * 4 * parameters_of(model)
    assert large - small > 0
    base = 4 * 4 * parameters_of(model)
    assert (large - base) == pytest.approx(2 * (small - base), rel=0.1)


def test_the_model_is_causal_and_takes_any_encoding():
    for spec in (
        "none",
        "sinusoidal",
        "learned",
        "rope",
        "alibi",
        "t5:max_distance=32",
        "shaw",
        "rope+alibi",
    ):
        model = make_model(tiny(spec))
        for weight in model.parameters():
            nn.init.normal_(weight, std=0.3)
        tokens = torch.randint(0, 256, (2, 8))
        changed = tokens.clone()
        changed[:, 5] = (changed[:, 5] + 1) % 256
        one, two = model(tokens), model(changed)
        torch.testing.assert_close(one[:, :5], two[:, :5])
        assert (one[:, 5:] - two[:, 5:]).abs().amax() > 1e-3
