"""What is measured of a trained model is what the records say it is."""

from __future__ import annotations

import pytest
import torch
from lab_cases import numbers, some_text, tiny
from torch import nn

import ordinate
from ordinate.lab.run.build import make_encoding, make_model, make_task
from ordinate.lab.run.cost import added_cost, parameters_of, training_memory
from ordinate.lab.run.evaluate import (
    _accuracy,
    _bins,
    evaluate,
    refusal,
    validation_loss,
    windowed_losses,
)
from ordinate.lab.run.model import Transformer, token_losses
from ordinate.lab.run.train import train_and_evaluate
from ordinate.lab.tasks import IGNORED, TASKS, FlipFlop


@pytest.fixture
def language(tmp_path):
    """A model that has learned nothing, and its text."""
    text = some_text(tmp_path / "text")
    config = tiny(
        task="language", text=(text,), evaluation_tokens=512, lengths=(8, 12, 16, 20, 32, 64), steps=100
    )
    return make_model(config), make_task(config), config


def measured(language, length):
    model, task, config = language
    return evaluate(model, task, config, length, windowed_losses(model, task, config))


class Counting(Transformer):
    """A model that is better the more it sees, up to a limit: the likeliest bytes get likelier."""

    def __init__(self, limit: int) -> None:
        super().__init__(ordinate.NoPE(), d_model=16, num_layers=1, num_heads=2)
        self.limit = limit

    def forward(self, tokens):
        seen = torch.arange(1, tokens.shape[1] + 1).clamp(max=self.limit).float()
        logits = torch.zeros(*tokens.shape, 256)
        logits[..., 97:123] += 0.1 * seen[None, :, None]
        return logits


class Near(Transformer):
    """A model whose guess depends on each of the last so many tokens, and on none before."""

    def __init__(self, window: int) -> None:
        super().__init__(ordinate.NoPE(), d_model=16, num_layers=1, num_heads=2)
        self.window = window
        self.table = torch.randn(window, 256, 256, generator=torch.Generator().manual_seed(0))

    def forward(self, tokens):
        logits = torch.zeros(*tokens.shape, 256)
        for back in range(min(self.window, tokens.shape[1])):
            logits[:, back:] += self.table[back][tokens[:, : tokens.shape[1] - back]]
        return logits


def losses_by_hand(model, task, config, length):
    """The loss of every target of every stretch, one sequence at a time, and its position."""
    batch = task.test_sequences(config, length)
    losses, places = [], []
    for tokens, targets in zip(batch.tokens, batch.targets, strict=True):
        with torch.no_grad():
            logits = model(tokens[None])[0]
        for place in range(length):
            if targets[place] != IGNORED:
                losses.append(nn.functional.cross_entropy(logits[place], targets[place]).item())
                places.append(place)
    shape = len(task.stretches(config)), -1
    return torch.tensor(losses).double().view(shape), torch.tensor(places).view(shape)


@pytest.mark.parametrize("length", [8, 12, 20, 32, 64])
def test_the_loss_is_the_cross_entropy_of_every_target_and_its_error_that_over_stretches(
    language, length
):
    found = measured(language, length)
    expected, _ = losses_by_hand(*language, length)
    assert expected.shape == (8, 64)
    assert found["loss"] == pytest.approx(expected.mean().item(), rel=1e-6)
    assert found["stretches"] == pytest.approx(expected.mean(1).tolist(), rel=1e-6)
    assert found["loss_error"] == pytest.approx(expected.mean(1).std().item() / 8**0.5, rel=1e-5)
    assert found["accuracy"] is None


def test_the_control_is_the_loss_with_exactly_the_training_length_in_view(language):
    model, task, config = language
    found = windowed_losses(model, task, config)
    text, starts = task.corpus.validation.long(), task.stretches(config).tolist()
    for stretch, start in enumerate(starts):
        for number in range(64 // 4):
            last = start + number * 4 + stretch % 4
            with torch.no_grad():
                logits = model(text[None, last - 7 : last + 1])[0, -1]
            expected = nn.functional.cross_entropy(logits, text[last + 1]).item()
            assert found[stretch, number].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("length", [12, 20, 64])
def test_the_gain_is_over_targets_that_see_more_than_in_training(language, length):
    model, task, config = language
    losses, places = losses_by_hand(model, task, config, length)
    chosen = task.controlled(config)
    saved = windowed_losses(model, task, config) - losses.gather(1, chosen)
    more = places.gather(1, chosen) >= 8
    assert measured(language, length)["gain"] == pytest.approx(saved[more].mean().item(), rel=1e-4)


@pytest.mark.parametrize("length", [12, 16, 20, 64])
@pytest.mark.parametrize(
    "model", [Near(8), Near(3), Counting(8), Counting(5)], ids=lambda m: type(m).__name__
)
def test_a_model_that_never_looks_past_the_training_length_gains_nothing(language, model, length):
    _, task, config = language
    found = measured((model, task, config), length)
    assert found["gain"] == pytest.approx(0, abs=1e-6)
    assert found["gain_error"] == pytest.approx(0, abs=1e-6)


def test_a_model_that_uses_more_context_gains_and_one_that_is_harmed_loses(language):
    _, task, config = language
    assert measured((Counting(20), task, config), 64)["gain"] > 0.1
    near = measured(
        (Near(20), task, config), 64
    )  # random guesses: the more tokens, the surer and wronger
    assert near["gain"] < -2 * near["gain_error"] < 0


def test_at_the_training_length_there_is_no_gain_to_speak_of(language):
    assert measured(language, 8)["gain"] is None


def test_the_loss_by_position_is_that_of_the_same_targets_at_every_position(language):
    _, task, config = language
    # A model that sees eight tokens and no place: past eight, every position must have the same loss,
    # whichever part of the text happens to stand there.
    found = measured((Near(8), task, config), 64)
    past = [loss for start, _, loss, _ in found["positions"] if start >= 8]
    assert past == pytest.approx([found["windowed_loss"]] * len(past), abs=1e-5)
    assert found["last_loss"] == pytest.approx(found["windowed_loss"], abs=1e-5)
    raw, places = losses_by_hand(Near(8), task, config, 64)
    of_last = raw[places >= 60].mean().item()
    assert abs(of_last - found["windowed_loss"]) > 0.05  # which the text alone would have shown


def test_the_last_loss_does_not_change_with_the_length_if_the_model_does_not(language):
    _, task, config = language
    last = [measured((Near(4), task, config), length)["last_loss"] for length in (8, 12, 20, 32, 64)]
    assert last == pytest.approx([last[0]] * 5, abs=1e-5)


def test_positions_cover_every_place_once_and_have_an_edge_at_the_training_length(language):
    for length in (8, 12, 64):
        edges = [(start, stop) for start, stop, _, _ in measured(language, length)["positions"]]
        assert [start for start, _ in edges] == [0, *(stop for _, stop in edges[:-1])]
        assert edges[-1][1] == length
        assert length == 8 or 8 in (start for start, _ in edges)


@pytest.mark.parametrize(
    ("length", "train_length"), [(512, 64), (96, 64), (65, 64), (64, 64), (40, 64), (5000, 7)]
)
def test_bins_are_eighths_of_the_training_length_and_quarters_of_octaves(length, train_length):
    bins = _bins(length, train_length)
    assert [start for start, _ in bins] == [0, *(stop for _, stop in bins[:-1])]
    assert bins[-1][1] == length
    assert all(start < stop for start, stop in bins)
    assert length <= train_length or train_length in (start for start, _ in bins)
    assert len(bins) <= 8 + 4 * 10


def test_an_error_is_the_scatter_over_stretches_also_where_they_hold_different_numbers(language):
    model, task, config = language
    losses, places = losses_by_hand(model, task, config, 20)
    chosen = task.controlled(config)
    saved = windowed_losses(model, task, config) - losses.gather(1, chosen)
    more = places.gather(1, chosen) >= 8
    draw = torch.Generator().manual_seed(1)
    gains = []
    for _ in range(2000):  # draw the stretches again, as another text would
        again = torch.randint(0, len(saved), (len(saved),), generator=draw)
        gains.append(saved[again][more[again]].mean().item())
    found = measured(language, 20)["gain_error"]
    assert found == pytest.approx(torch.tensor(gains).std().item(), rel=0.15)


def test_an_encoding_that_declines_a_length_is_quoted_and_has_no_numbers():
    config = tiny("learned")
    measured = evaluate(make_model(config), make_task(config), config, 16)
    assert measured["positions"] == []
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


@pytest.mark.parametrize(("task", "expected"), [("copy", 0.5), ("induction", None)])
def test_exact_match_counts_whole_answers_and_accuracy_single_tokens(task, expected, monkeypatch):
    config = tiny(task=task, lengths=(16, 32), train_length=16, evaluation_tokens=64, last_tokens=6)
    given = make_task(config)
    monkeypatch.setattr(type(given), "variants", ())
    batch = given.test_sequences(config, 32)
    measured = evaluate(Oracle(batch), given, config, 32)
    of_last = expected
    if expected is None:  # every answer counts the same, however many a sequence asks for
        asked = batch.targets != IGNORED
        wrong = asked[::2, -1].sum().item()
        expected, of_last = (1 - wrong / some.sum().item() for some in (asked, asked[:, -6:]))
        assert of_last < expected
    assert measured["accuracy"] == pytest.approx(expected)
    assert measured["last_accuracy"] == pytest.approx(of_last)
    assert measured["last_accuracy_error"] > 0
    assert measured["windowed_loss"] is None


def test_ten_right_answers_of_eleven_are_ten_elevenths():
    right = torch.zeros(2, 10, dtype=torch.bool)
    asked = torch.zeros(2, 10, dtype=torch.bool)
    asked[0], asked[1, 0], right[0] = True, True, True  # ten of ten, and none of one
    share, error = _accuracy(FlipFlop(), right, asked)
    assert share == pytest.approx(10 / 11)
    assert error is not None


def test_an_accuracy_without_a_mistake_has_an_error_all_the_same():
    asked = torch.ones(64, 3, dtype=torch.bool)
    share, error = _accuracy(TASKS["copy"](), asked, asked)
    assert share == 1.0
    assert 2 * error == pytest.approx(3 / 64)  # the rule of three


@pytest.mark.parametrize("task", ["flipflop", "passkey"])
def test_further_test_sets_are_scored_beside_the_test(task):
    config = tiny(task=task, lengths=(40, 80), train_length=40)
    found = evaluate(make_model(config), make_task(config), config, 80)
    assert list(found["variants"]) == list(TASKS[task].variants)
    for share, error in found["variants"].values():
        assert 0 <= share <= 1
        assert error > 0


def test_untested_tokens_carry_no_loss():
    logits = torch.randn(2, 5, 256)
    targets = torch.tensor([[1, 2, IGNORED, 4, IGNORED], [IGNORED] * 5])
    losses = token_losses(logits, targets)
    assert (losses[targets == IGNORED] == 0).all()
    assert (losses[targets != IGNORED] > 0).all()


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
