"""A patched model: what ordinate computes in it, what stays as it was, and that unpatch restores it."""

from __future__ import annotations

import copy
import importlib
import json
import pickle
import sys
import threading

import pytest
import torch
import transformers
from patch_models import MODELS, build, inputs, left_padding, logits, tokens
from torch import nn

from ordinate.hf import patch, register_attention, unpatch
from ordinate.hf.patching.rotary import _replaced
from ordinate.rotate import rotation

close = {"atol": 1e-5, "rtol": 1e-5}


@pytest.fixture(autouse=True)
def _no_function_of_transformers_stays_replaced():
    yield
    for function in list(_replaced):
        function.scope[function.name] = _replaced.pop(function)[0]


def count_calls(monkeypatch, owner, name: str) -> list:
    calls, original = [], getattr(owner, name)

    def counted(*args, **kwargs):
        calls.append(args)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, counted)
    return calls


def count_rotated(monkeypatch) -> list:
    """Every tensor that ordinate rotates from now on, one entry each."""
    rotated, original = [], rotation.rotate_pairs

    def counted(tensors, *args):
        rotated.extend(tensors)
        return original(tensors, *args)

    monkeypatch.setattr(rotation, "rotate_pairs", counted)
    return rotated


# What ordinate computes


@pytest.mark.parametrize("name", MODELS)
def test_every_attention_layer_attends_and_rotates_by_ordinate(name, monkeypatch):
    model = build(name)
    interface = importlib.import_module("ordinate.hf.patching.attention_interface")
    report = patch(model)
    attends = count_calls(monkeypatch, interface, "attention")
    rotated = count_rotated(monkeypatch)
    logits(model, **inputs(model, mask=True))
    layers = sum(entry.how_many for entry in report.changed if entry.kind.endswith("Attention"))
    assert len(attends) == layers
    without = sum(not layer.get("rope", True) for layer in rotation_by_layer(model))
    rotates = any("RoPE" in entry.what for entry in report.changed) and not getattr(
        model.config, "alibi", False
    )
    assert len(rotated) == (2 * (layers - without) if rotates else 0)


def rotation_by_layer(model) -> list[dict[str, bool]]:
    """Which layers have no rotation, by the models' own configs."""
    config = model.config
    if hasattr(config, "no_rope_layers"):
        return [{"rope": bool(kind)} for kind in config.no_rope_layers]
    if config.model_type == "cohere2":
        return [{"rope": kind == "sliding_attention"} for kind in config.layer_types]
    return []


def test_no_dense_bias_is_made_for_t5(monkeypatch):
    model = build("T5")
    patch(model)

    def fail(*args, **kwargs):
        raise AssertionError("compute_bias was called")

    for module in model.modules():
        if hasattr(module, "compute_bias"):
            monkeypatch.setattr(module, "compute_bias", fail)
    logits(model, **inputs(model, mask=True))


@pytest.mark.slow
@pytest.mark.plain  # the shape checker hides the kernels' types from PyTorch
@pytest.mark.parametrize("name", ["T5", "BLOOM", "MPT", "Falcon, ALiBi", "Llama 2"])
def test_the_fused_kernels_take_padded_batches(name, monkeypatch):
    """Interpreted: that they are reached with padding, and agree, forward and backward."""
    fused = importlib.import_module("ordinate.attending.fused.terms")
    monkeypatch.setattr(fused, "_interpreting", lambda: True)
    model = build(name)
    ids = tokens(length=6)
    mask = left_padding(ids, by=2)
    given = {"input_ids": ids, "attention_mask": mask}
    if name == "T5":
        given["decoder_input_ids"] = tokens(length=4)
    expected = logits(model, **given)
    patch(model, impl="fused")  # refuses with its reasons what it cannot do
    torch.testing.assert_close(logits(model, **given), expected, atol=1e-4, rtol=1e-4)
    model(**given).logits.sum().backward()


# What stays as it was


@pytest.mark.parametrize("name", ["Llama 2", "T5", "BLOOM", "Gemma 3", "Qwen2-VL", "Phi-3, longrope"])
def test_unpatch_leaves_no_trace(name):
    model = build(name)
    logits(model, **inputs(model, mask=True))

    def state():
        files = {sys.modules[type(module).__module__] for module in model.modules()}
        functions = {
            (f.__name__, k): v for f in files for k, v in vars(f).items() if k.startswith("apply")
        }
        modules = [dict(vars(module)) for module in model.modules()]
        hooks = [dict(m._forward_pre_hooks) | dict(m._forward_hooks) for m in model.modules()]
        for held in modules:
            for key in [
                key
                for key in held
                if key.startswith(("_forward", "_parameters", "_buffers", "_modules"))
            ]:
                del held[key]
        implementations = [
            m.config._attn_implementation for m in model.modules() if hasattr(m, "config")
        ]
        return functions, modules, hooks, implementations

    before = state()
    patch(model)
    logits(model, **inputs(model, mask=True))
    assert state() != before
    unpatch(model)
    after = state()
    assert after[0] == before[0]
    assert [held.keys() for held in after[1]] == [held.keys() for held in before[1]]
    for ours, theirs in zip(after[1], before[1], strict=True):
        assert all(ours[key] is theirs[key] or ours[key] == theirs[key] for key in ours)
    assert after[2:] == before[2:]


def test_parameters_are_shared_and_an_optimizer_made_before_goes_on():
    patched, plain = build("T5").train(), build("T5").train()
    parameters = [id(p) for p in patched.parameters()]
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-3) for model in (patched, plain)]
    patch(patched)
    assert [id(p) for p in patched.parameters()] == parameters
    assert patched.state_dict().keys() == plain.state_dict().keys()
    for _ in range(3):
        for model, optimizer in zip((patched, plain), optimizers, strict=True):
            optimizer.zero_grad()
            given = inputs(model, mask=True)
            model(**given, labels=given["decoder_input_ids"]).loss.backward()
            optimizer.step()
    for ours, theirs in zip(patched.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["Llama 2", "T5", "BLOOM"])
def test_a_patched_model_is_saved_as_the_model_it_is(name, tmp_path):
    model = build(name)
    model.save_pretrained(tmp_path / "plain")
    patch(model)
    model.save_pretrained(tmp_path / "patched")
    for file in (tmp_path / "plain").iterdir():
        assert file.read_bytes() == (tmp_path / "patched" / file.name).read_bytes(), file.name
    assert "ordinate" not in (tmp_path / "patched" / "config.json").read_text()
    json.loads((tmp_path / "patched" / "config.json").read_text())


def test_a_model_that_shares_the_config_is_not_touched():
    config = transformers.BloomConfig(vocab_size=97, hidden_size=32, n_layer=1, n_head=4)
    first, second = (
        transformers.BloomForCausalLM(config).eval(),
        transformers.BloomForCausalLM(config).eval(),
    )
    before = logits(second, input_ids=tokens())
    patch(first)
    assert config._attn_implementation != "ordinate"
    assert torch.equal(logits(second, input_ids=tokens()), before)
    unpatch(first)
    assert first.config is config


def test_another_model_of_the_same_file_rotates_by_its_own_code(monkeypatch):
    patched, plain = build("Llama 2"), build("Llama 2")
    before = logits(plain, input_ids=tokens())
    patch(patched)
    rotated = count_rotated(monkeypatch)
    assert torch.equal(logits(plain, input_ids=tokens()), before)
    assert rotated == []
    third = build("Llama 2")
    patch(third)
    unpatch(patched)
    logits(third, input_ids=tokens())
    assert rotated  # the functions of the file are still replaced, for the third


@pytest.mark.parametrize("name", ["Llama 2", "T5", "BLOOM"])
def test_a_copy_of_a_patched_model_is_a_patched_model_of_its_own(name):
    model = build(name)
    given = inputs(model, mask=True)
    before = logits(model, **given)
    patch(model)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    torch.testing.assert_close(logits(twin, **given), before, **close)
    unpatch(twin)
    assert torch.equal(logits(twin, **given), before)
    assert type(model).forward is type(twin).forward


def test_an_implementation_chosen_after_the_patch_is_kept(monkeypatch):
    model = build("Llama 2")
    patch(model)
    interface = importlib.import_module("ordinate.hf.patching.attention_interface")
    attends = count_calls(monkeypatch, interface, "attention")
    model.set_attn_implementation("eager")
    with torch.no_grad():
        assert model(tokens(), output_attentions=True).attentions[0].shape == (2, 4, 20, 20)
    logits(model, input_ids=tokens())
    assert attends == []
    model.set_attn_implementation("ordinate")
    logits(model, input_ids=tokens())
    assert len(attends) == 2


def test_a_hook_that_moves_inputs_is_kept():
    """Accelerate wraps a module's forward and keeps the old one under another name."""
    model = build("BLOOM")
    expected = logits(model, input_ids=tokens())
    layer, seen = model.transformer.h[0].self_attention, []
    layer._hf_hook, layer._old_forward = object(), layer.forward

    def hooked(*args, **kwargs):
        seen.append(1)
        return layer._old_forward(*args, **kwargs)

    layer.forward = hooked
    patch(model)
    seen.clear()
    torch.testing.assert_close(logits(model, input_ids=tokens()), expected, **close)
    assert seen == [1]
    assert layer.forward is hooked
    unpatch(model)
    assert torch.equal(logits(model, input_ids=tokens()), expected)


# Training


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", ["Llama 2", "T5", "UMT5", "BLOOM", "MPT", "Gemma 3"])
def test_gradient_checkpointing_gives_the_same_gradients(name, reentrant):
    def gradients(model) -> list:
        model.train()
        given = inputs(model, mask=False)
        labels = given.get("decoder_input_ids", given["input_ids"])
        model(**given, labels=labels, use_cache=False).loss.backward()
        return [p.grad for p in model.parameters()]

    plain, patched = build(name), build(name)
    expected = gradients(plain)
    patch(patched)
    patched.gradient_checkpointing_enable({"use_reentrant": reentrant})
    if reentrant:
        patched.enable_input_require_grads()
    for ours, theirs in zip(gradients(patched), expected, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["Llama 2", "Gemma 2", "GPT-J", "BLOOM", "MPT", "Falcon, ALiBi"])
def test_a_left_padded_loss_is_the_same_without_a_label_for_the_first_token(name):
    """The first token is predicted by padding, whose answer means nothing in either model."""
    model, ids = build(name), tokens()
    mask = left_padding(ids)
    labels = ids.masked_fill(mask == 0, -100)
    labels[1, mask[1].argmax()] = -100

    def loss():
        with torch.no_grad():
            return model(ids, attention_mask=mask, labels=labels).loss

    expected = loss()
    patch(model)
    torch.testing.assert_close(loss(), expected, **close)


def test_dropout_of_attention_is_applied_in_training_only():
    config = transformers.T5Config(
        vocab_size=97, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, dropout_rate=0.5
    )
    model = transformers.T5EncoderModel(config)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # all but attention's own, which is a number
    patch(model)
    run = lambda: model(tokens()).last_hidden_state  # noqa: E731
    model.train()
    assert not torch.equal(run(), run())
    model.eval()
    assert torch.equal(run(), run())


@pytest.mark.parametrize("name", ["Llama 2", "T5", "BLOOM", "Gemma 2", "gpt-oss"])
def test_autocast_and_low_precision_are_within_twice_their_own_error(name):
    exact = build(name)  # float32: thousands of times closer than what is measured here
    given = inputs(exact, mask=True)
    reference = logits(exact, **given).double()
    model = build(name).to(torch.bfloat16)
    theirs = (logits(model, **given).double() - reference).abs().mean()
    patch(model)
    ours = (logits(model, **given).double() - reference).abs().mean()
    assert ours <= 2 * theirs
    mixed = build(name)
    patch(mixed)
    with torch.autocast("cpu", torch.bfloat16):
        cast = logits(mixed, **given)
    assert (cast.double() - reference).abs().mean() <= 2 * theirs


# Calls that the model's own code answers


@pytest.mark.parametrize("name", ["Llama 2", "T5", "BLOOM", "MPT", "Falcon, ALiBi", "GPT-J"])
def test_attention_weights_are_the_models_own(name):
    model = build(name)
    model.set_attn_implementation("eager")
    given = inputs(model, mask=True)
    with torch.no_grad():
        expected = model(**given, output_attentions=True)
    patch(model)
    before = logits(model, **given)
    with torch.no_grad():
        asked = model(**given, output_attentions=True)
    key = "encoder_attentions" if name == "T5" else "attentions"
    assert len(asked[key]) > 0
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(asked[key], expected[key], strict=True))
    assert torch.equal(asked.logits, expected.logits)
    assert torch.equal(logits(model, **given), before)  # and the next call is ours again


def test_a_mask_of_four_dimensions_is_obeyed():
    model, ids = build("Llama 2"), tokens()
    mask = torch.rand(2, 1, 20, 20) > 0.3
    mask |= torch.eye(20, dtype=torch.bool)
    expected = logits_of(model, ids, mask)
    patch(model)
    assert torch.equal(logits_of(model, ids, mask), expected)


def logits_of(model, ids, mask):
    with torch.no_grad():
        return model(ids, attention_mask=mask).logits


@pytest.mark.parametrize("name", ["T5", "mT5", "UMT5"])
def test_a_bypassed_call_takes_what_the_encoder_gave(name):
    model, ids = build(name), tokens()
    model.set_attn_implementation("eager")
    more = {"max_new_tokens": 6, "do_sample": False, "disable_compile": True}
    request = {"output_attentions": True, "return_dict_in_generate": True}

    def answers():
        with torch.no_grad():
            encoded = model.get_encoder()(ids)
            given = {"decoder_input_ids": tokens(length=5), "output_attentions": True}
            called = model(encoder_outputs=encoded, **given)
        generated = model.generate(ids, **more, **request).sequences
        return [called.logits, called.decoder_attentions[0], generated]

    expected = answers()
    patch(model)
    for ours, theirs in zip(answers(), expected, strict=True):
        torch.testing.assert_close(ours, theirs, **close)


# Threads


def answers_of_threads(calls: list, rounds: int = 60) -> list[list]:
    """Each call made over and over, all of them at once, a thread for each."""
    found: list[list] = [[] for _ in calls]
    start = threading.Barrier(len(calls))

    def run(call, answers) -> None:
        start.wait()
        for _ in range(rounds):
            try:
                answers.append(call())
            except Exception as problem:
                answers.append(problem)

    threads = [threading.Thread(target=run, args=pair) for pair in zip(calls, found, strict=True)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # as many changes of thread as there can be
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    return found


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("name", ["Llama 2", "Phi-3, longrope", "Gemma 3", "T5", "BLOOM"])
def test_two_threads_may_call_one_model(name, weights):
    """One thread's call does not see the state of the other's, nor that it is bypassed."""
    model = build(name)
    patch(model)
    given = [inputs(model, mask=True), inputs(model, mask=False)]
    given[1]["input_ids"] = given[1]["input_ids"][:, :13]

    def call(which: int):
        return logits(model, **given[which], output_attentions=weights and which == 1)

    expected = [call(0), call(1)]
    for answers, right in zip(
        answers_of_threads([lambda: call(0), lambda: call(1)]), expected, strict=True
    ):
        for answer in answers:
            assert isinstance(answer, torch.Tensor), answer
            torch.testing.assert_close(answer, right, atol=1e-6, rtol=1e-6)


def test_the_config_of_a_patched_model_is_one_of_its_family():
    model = build("Llama 2")
    patch(model)
    config = model.config
    assert isinstance(config, transformers.LlamaConfig)
    assert config._attn_implementation == "ordinate"
    for twin in (pickle.loads(pickle.dumps(config)), copy.deepcopy(config)):
        assert type(twin) is transformers.LlamaConfig
        assert twin.to_dict() == config.to_dict()
    again = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    assert isinstance(again, transformers.LlamaForCausalLM)


def test_an_exception_in_a_call_leaves_the_model_patched():
    model = build("Llama 2")
    patch(model)
    before = logits(model, input_ids=tokens())
    with pytest.raises(IndexError):
        model(torch.tensor([[10**6]]), output_attentions=True)
    assert torch.equal(logits(model, input_ids=tokens()), before)


# Masks and positions


@pytest.mark.parametrize("name", ["Llama 2", "Mistral", "Gemma 2", "Llama 4", "BLOOM", "T5"])
def test_right_padding_and_prefill_in_pieces(name):
    model, ids = build(name), tokens(length=24)
    mask = torch.ones_like(ids)
    mask[1, 17:] = 0
    given = {"decoder_input_ids": tokens(length=4)} if name == "T5" else {}
    expected = logits(model, input_ids=ids, attention_mask=mask, **given)
    patch(model)
    torch.testing.assert_close(
        logits(model, input_ids=ids, attention_mask=mask, **given), expected, **close
    )
    if name == "T5":
        return
    whole = logits(model, input_ids=ids)
    with torch.no_grad():
        first = model(ids[:, :13], use_cache=True)
        second = model(ids[:, 13:], past_key_values=first.past_key_values, use_cache=True)
    torch.testing.assert_close(torch.cat((first.logits, second.logits), dim=1), whole, **close)


def test_packed_sequences_see_only_themselves():
    model = build("Llama 2")
    ids = tokens(batch=1, length=20)
    positions = torch.cat((torch.arange(8), torch.arange(12)))[None]
    with torch.no_grad():
        expected = model(ids, position_ids=positions, use_cache=False).logits
        alone = model(ids[:, 8:], use_cache=False).logits
    patch(model)
    with torch.no_grad():
        packed = model(ids, position_ids=positions, use_cache=False).logits
    torch.testing.assert_close(packed, expected, **close)
    torch.testing.assert_close(packed[:, 8:], alone, **close)


@pytest.mark.parametrize("name", ["BLOOM", "MPT", "Falcon, ALiBi"])
def test_holes_in_a_mask_are_counted_as_the_models_own_code_counts_them(name):
    model, ids = build(name), tokens()
    mask = torch.ones_like(ids)
    mask[0, 5:9], mask[1, :3], mask[1, 12] = 0, 0, 0
    expected = logits(model, input_ids=ids, attention_mask=mask)
    patch(model)
    torch.testing.assert_close(logits(model, input_ids=ids, attention_mask=mask), expected, **close)


@pytest.mark.parametrize("name", ["Qwen2-VL", "Qwen3-VL"])
def test_images_are_rotated_by_their_three_coordinates(name):
    model, ids = build(name), tokens(batch=1, length=12)
    text = torch.arange(4)
    grid = torch.stack(torch.meshgrid(torch.arange(1), torch.arange(2), torch.arange(4), indexing="ij"))
    image = 4 + grid.flatten(1)
    positions = torch.cat((text.expand(3, 4), image), dim=1)[:, None]
    run = lambda: model.model.language_model(ids, position_ids=positions).last_hidden_state  # noqa: E731
    with torch.no_grad():
        expected, flat = run(), model.model.language_model(ids).last_hidden_state
        patch(model)
        patched = run()
    torch.testing.assert_close(patched, expected, **close)
    assert not torch.allclose(patched, flat, atol=1e-2)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", ["Qwen2", "Gemma 3", "Nemotron"])
def test_a_decoder_that_is_to_see_both_ways_does_as_before(name, when):
    """As files of embedding models say, GTE-Qwen2's; Nemotron's own code obeys it only where there is a mask."""
    models = build(name), build(name)
    if when == "after":
        patch(models[1])
    for model in models:
        for module in (part for part in model.modules() if hasattr(part, "config")):
            module.config.is_causal = False
    if when == "before":
        assert patch(models[1]).checked
    for padded in (False, True):
        expected, found = (logits(model, **inputs(model, mask=padded)) for model in models)
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["Llama 2", "T5", "BLOOM"])
def test_beams_sampling_and_assistants_work(name):
    model, ids = build(name), tokens()
    more = {"max_new_tokens": 12, "num_beams": 3, "do_sample": False, "pad_token_id": 0}
    mask = left_padding(ids)
    expected = model.generate(ids, attention_mask=mask, **more)
    patch(model)
    assert torch.equal(model.generate(ids, attention_mask=mask, **more), expected)


# Reports


def test_the_report_says_what_was_done_and_what_was_left_alone():
    model = build("Qwen2-VL")
    report = patch(model)
    text = str(report)
    assert text == repr(report)
    assert "Qwen2VLForConditionalGeneration, patched (impl='auto')" in text
    assert "changed     Qwen2VLAttention × 2" in text
    assert "RoPE(16, base=10000, layout='half', sections=(4, 2, 2)" in text
    assert "left alone  VisionAttention" in text
    assert all(entry.what for entry in (*report.changed, *report.left_alone))


def test_a_rotary_module_that_no_layer_uses_is_left_alone():
    """Falcon makes one in any case, and with ALiBi does not call it."""
    report = patch(build("Falcon, ALiBi"))
    assert [entry.kind for entry in report.changed] == ["FalconAttention"]
    (left,) = report.left_alone
    assert left.kind == "FalconRotaryEmbedding"
    assert left.what == "nothing rotates by it: the config's plan has no rotation"


def test_a_family_whose_config_is_not_read_is_rotated_by_its_own_frequencies(monkeypatch):
    patching = importlib.import_module("ordinate.hf.patching.patcher")

    def unread(config):
        raise patching.ConfigError("model_type must be a family that ordinate reads, got 'llama'")

    monkeypatch.setattr(patching, "from_config", unread)
    model = build("Llama 3.1")
    expected = logits(model, input_ids=tokens())
    rotated = count_rotated(monkeypatch)
    report = patch(model)
    torch.testing.assert_close(logits(model, input_ids=tokens()), expected, **close)
    assert rotated
    assert "by the module's own frequencies" in str(report)
    assert "got 'llama'" in str(report)


def test_a_rotary_module_of_other_frequencies_is_rotated_by_them():
    model = build("Llama 2")
    with torch.no_grad():
        model.model.rotary_emb.inv_freq.mul_(1.01)
        model.model.rotary_emb.original_inv_freq.mul_(1.01)
    expected = logits(model, input_ids=tokens())
    report = patch(model)
    torch.testing.assert_close(logits(model, input_ids=tokens()), expected, **close)
    assert "by the module's own frequencies, which no reading of the config gives" in str(report)


def test_a_model_that_would_answer_otherwise_is_refused_and_left_as_it_was(monkeypatch):
    """As for a family that was never tried: the answer to a few tokens differs, and the patch is undone."""
    interface = importlib.import_module("ordinate.hf.patching.attention_interface")
    right = interface.attend
    model = build("Llama 2").train()
    given = inputs(model, mask=True)
    random_state, before = torch.get_rng_state(), logits(model, **given)
    monkeypatch.setattr(interface, "attend", lambda *args, **kwargs: right(*args, **kwargs) * 1.01)
    rotate = rotation.Rotation.apply_both
    with monkeypatch.context() as wrong:
        wrong.setattr(rotation.Rotation, "apply_both", lambda *args: [x * 1.01 for x in rotate(*args)])
        with pytest.raises(
            ValueError,
            match=r"model must answer as before .* got LlamaForCausalLM with answers 0\.\d+ of",
        ):
            patch(model)
    assert torch.equal(logits(model, **given), before)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(module.training for module in model.modules())
    assert patch(model, check=False).checked is False
    unpatch(model)
    report = patch(model)  # only the rotation is right
    assert [entry.kind for entry in report.changed] == ["LlamaRotaryEmbedding"]
    assert "LlamaAttention" in [entry.kind for entry in report.left_alone]
    torch.testing.assert_close(logits(model, **given), before, **close)
    unpatch(model)
    monkeypatch.setattr(interface, "attend", right)
    report = patch(model)
    assert report.checked
    assert "answers as before" in str(report)


@pytest.mark.parametrize("name", ["Llama 2", "Gemma 2"])
def test_a_model_is_checked_without_autocast(name):
    model = build(name)
    with torch.autocast("cpu", torch.bfloat16):
        assert patch(model).checked


def test_a_sine_that_a_model_changes_is_not_taken_for_the_rotation():
    """Some rotate their outputs back with -sin; only the tensors that the rotary module returned have a rotation."""
    from transformers.models.llama import modeling_llama

    model = build("Llama 2")
    q = torch.randn(1, 4, 3, 16)
    own = modeling_llama.apply_rotary_pos_emb
    cos, sin = model.model.rotary_emb(q, torch.arange(3)[None])
    expected = own(q, q, cos, -sin)
    patch(model)
    cos, sin = model.model.rotary_emb(q, torch.arange(3)[None])
    assert modeling_llama.apply_rotary_pos_emb is not own
    assert torch.equal(modeling_llama.apply_rotary_pos_emb(q, q, cos, -sin)[0], expected[0])


def test_the_attention_implementation_can_be_chosen_by_name_without_a_patch():
    register_attention()
    config = build("Llama 2").config
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM._from_config(config, attn_implementation="ordinate").eval()
    torch.manual_seed(0)
    plain = transformers.LlamaForCausalLM._from_config(config, attn_implementation="eager").eval()
    ids = tokens()
    given = {"input_ids": ids, "attention_mask": left_padding(ids)}
    torch.testing.assert_close(logits(model, **given), logits(plain, **given), **close)
