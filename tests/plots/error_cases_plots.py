"""What `show` and `plots` refuse, collected by tests/test_errors.py."""

# ruff: noqa: E501  one case a line, however long
from __future__ import annotations

import unittest.mock
from typing import Any

import ordinate
from ordinate import RoPE, plots
from ordinate.hf import from_config
from ordinate.hf.doctor import diagnose
from ordinate.hf.picture import picture_of


def plots_without_backends(spec: str) -> Any:
    with unittest.mock.patch.object(ordinate.plots.api, "find_spec", return_value=None):
        return plots.plot(spec)


GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 128}

CASES = [
    # show
    ("show of an odd dim", lambda: ordinate.show("rope", dim=7), ValueError, r"head_dim must be even, channels turn in pairs, got 7"),
    ("show of too many channels", lambda: ordinate.show("rope", dim=2000), ValueError, r"dim must be at most 1024, got 2000"),
    ("show of a class", lambda: ordinate.show(RoPE), ValueError, r"spec must be text such as 'rope:base=1e6', got <class"),
    ("show of a huge table", lambda: ordinate.show("t5:max_distance=9999999"), ValueError, r"max_distance of an example must be at most 65536, got 9999999"),
    ("show of a learned table of gigabytes", lambda: ordinate.show("learned", dim=1024, train_length=2**24), ValueError, r"numbers in the table of learned must be at most 16777216, got 17179869184"),
    ("show of a huge table in Python's spelling", lambda: ordinate.show("t5:max_distance=1_000_000_000"), ValueError, r"max_distance of an example must be at most 65536, got 1000000000"),
    ("show of two sizes, large together", lambda: ordinate.show("shaw:max_distance=65536,head_dim=1024"), ValueError, r"numbers in the table of shaw must be at most 16777216, got 134218752"),
    # plots
    ("plot of a config that turns nothing", lambda: picture_of(diagnose(from_config(GPT2)), "gpt2"), ValueError, r"CONFIG must have a rotation to draw its wavelengths, got none"),
    ("plot of scores of many wide heads far away", lambda: plots.picture("rope", "scores", dim=1024, heads=64, distance=16384), ValueError, r"dim times heads times distance of the scores must be at most 8388608, got 1073807360"),
    ("plot of attention of many wide heads", lambda: plots.picture("rope", "attention", dim=1024, heads=64), ValueError, r"dim times heads of an attention must be at most 2048, got 65536"),
    ("plot with an unknown option", lambda: plots.picture("rope", position=3), ValueError, r"unknown option 'position' of a picture; did you mean 'positions'"),
    ("plot of an unknown kind", lambda: plots.picture("rope", "wave"), ValueError, r"unknown kind 'wave' of picture; did you mean 'waves'"),
    ("plot of a kind it has not", lambda: plots.picture("alibi", "codes"), ValueError, r"kind must be one that alibi has, bias, .*, got 'codes'"),
    ("plot with an unknown backend", lambda: plots.plot("rope", backend="bokeh"), ValueError, r"backend must be one of 'matplotlib', 'plotly', got 'bokeh'"),
    ("plot without its backend", lambda: plots_without_backends("rope"), ModuleNotFoundError, r"backend 'matplotlib' must be installed: pip install 'ordinate\[plot\]'"),
    ("plot of no channels", lambda: plots.picture("rope", "waves", pairs=()), ValueError, r"pairs must name 1 to 8, got 0"),
    ("plot of a pair twice", lambda: plots.picture("rope", "waves", pairs=(0, 0)), ValueError, r"pairs must each be named once, got 0, 0"),
    ("plot of a channel beyond the last", lambda: plots.picture("sinusoidal", "channels", channels=(64,)), ValueError, r"channels must be below 64, got 64"),
    ("plot of half a position", lambda: plots.picture("rope", positions=2.5), TypeError, r"positions must be an int, got 2.5"),
    ("plot of one word", lambda: plots.picture("rope", "attention", text="a"), ValueError, r"text must have 2 to 16 words, got 1"),
    ("plot into a jpg", lambda: plots.save("rope", "rope.jpg"), ValueError, r"path must end in .png, .svg, .html, got 'rope.jpg'"),
    ("plot of letters no font has", lambda: plots.save("rope", "unwritten.png", "attention", text="\U0001f980 \U0001f98e"), ValueError, r"text must have letters that a font here can draw, or go to a file .html, got Glyph"),
]  # fmt: skip
