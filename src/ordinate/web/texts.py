"""The texts of the page in English and Chinese; `ordinate.chinese` translates the sentences of the library."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..checks import Refusal, refusal_of
from ..chinese.translate import in_chinese, translated
from ..lab.formats import writable
from ..plots.pictures import Picture

LANGUAGES = {"English": "en", "中文": "zh"}

#: Key → English, Chinese.
TEXTS = {
    "title": (
        "# ordinate: how a Transformer knows the order of its tokens",
        "# ordinate：Transformer 怎样知道词的顺序",
    ),
    "about": (
        "Every number and picture is computed here and now by the library itself, where this page is served; "
        "nothing goes anywhere else.",
        "每个数字和每张图都由 ordinate 库在提供本页面的机器上当场计算，任何数据都不会发往别处。",
    ),
    "language": ("Language", "语言"),
    "tab_encodings": ("Encodings", "位置编码"),
    "tab_shuffle": ("Shuffle a sentence", "打乱句子"),
    "tab_config": ("A model's config", "模型配置"),
    "tab_lab": ("A lab report", "实验报告"),
    "compare": ("Compare two side by side", "并排比较两种编码"),
    "encoding": ("Encoding", "编码"),
    "encoding_b": ("Second encoding", "第二种编码"),
    "view": ("View", "视图"),
    "own_spec": ("Spec, as in ordinate.create", "编码描述（与 ordinate.create 相同）"),
    "positions": ("Positions, or tokens of a matrix", "位置数（矩阵为词数）"),
    "dim": ("Channels of a head, or of an embedding", "每个头（或词嵌入）的维数"),
    "heads": ("Heads", "头数"),
    "distance": ("Largest distance", "最大距离"),
    "train_length": ("Training length", "训练长度"),
    "log_base": ("base = 10^", "底数 base = 10^"),
    "layout": ("layout", "通道配对方式 layout"),
    "endpoint": ("endpoint (tensor2tensor's frequencies)", "endpoint（tensor2tensor 的频率）"),
    "scaling": ("scaling", "频率缩放 scaling"),
    "factor": ("factor of the scaling", "缩放倍数 factor"),
    "symmetric": ("symmetric (both directions)", "symmetric（双向）"),
    "bidirectional": ("bidirectional", "bidirectional（双向）"),
    "num_buckets": ("num_buckets", "桶数 num_buckets"),
    "max_distance": ("max_distance", "最大距离 max_distance"),
    "sentence": ("A sentence of 2 to 16 words", "一句话（2 到 16 个词，中文按字切分）"),
    "again": ("Shuffle again", "再打乱一次"),
    "shuffle_about": (
        "The words go through one attention layer with fixed random weights, in their order and shuffled; the "
        "shuffled result is put back into the first order. Without positions nothing changes: attention does not "
        "see order. No mask hides the future here, since a mask alone would tell the order; ALiBi is therefore "
        "symmetric.",
        "句子按原顺序和打乱后的顺序各通过一次随机权重固定的注意力层，再把打乱的结果放回原顺序。没有位置信息时毫无变化：注意力看不见顺序。"
        "这里不加因果掩码，因为掩码本身就会透露顺序；ALiBi 因此取对称形式。",
    ),
    "config_file": ("Drop a config.json", "拖入 config.json"),
    "config_text": ("… or paste it", "……或粘贴其内容"),
    "diagnose": ("Read it", "读取"),
    "pairs": ("Pairs", "各通道对"),
    "report_zip": ("Drop the folder of ordinate compare as a .zip", "拖入 ordinate compare 输出文件夹的 .zip"),
    "report_known": ("… or one this page was started with (--runs)", "……或从启动时指定的文件夹（--runs）中选择"),
    "curve": ("Figure", "图"),
    "arms": ("Measured", "测量结果"),
    "findings": ("What the lab found:", "（以下结论为实验报告的英文原文。）"),
    "command": ("The same on the command line:", "等价的命令："),
    "kind_codes": ("codes", "编码图"),
    "kind_channels": ("channels along positions", "通道随位置变化"),
    "kind_profile": ("positions across channels", "位置的整行编码"),
    "kind_rotation": ("rotation in the plane", "平面中的旋转"),
    "kind_waves": ("cosines of pairs", "各对的余弦"),
    "kind_wavelengths": ("wavelengths", "波长"),
    "kind_scalings": ("scalings side by side", "各种缩放对比"),
    "kind_bias": ("bias matrices", "偏置矩阵"),
    "kind_distance": ("bias by distance", "偏置随距离变化"),
    "kind_slopes": ("slopes", "斜率"),
    "kind_buckets": ("buckets", "分桶"),
    "kind_scores": ("score against distance", "得分随距离变化"),
    "kind_attention": ("attention and a shuffle", "注意力与打乱"),
}  # fmt: skip

#: Parameters of the library → the control of the page that sets them.
_SET_BY = {
    "head_dim": "dim",
    "d_model": "dim",
    "num_heads": "heads",
    "spec": "own_spec",
    "text": "sentence",
}


def text(key: str, language: str) -> str:
    """A text of the page; an option that a registered encoding brings is called by its own name."""
    return TEXTS.get(key, (key, key))[language == "zh"]


def say(sentence: str, language: str) -> str:
    """A label or sentence of the library in a language; what has no translation stays English.

    Example:
        >>> say("position", "zh"), say("position", "en")
        ('位置', 'position')
    """
    return translated(sentence) if language == "zh" else sentence


def refusal_text(reason: Refusal | BaseException, language: str) -> str:
    """The reason of a refusal on one line, with the labels of controls in the place of arguments."""
    refusal = reason if isinstance(reason, Refusal) else refusal_of(reason)
    if language == "zh":
        names = {name: chinese for name, (_, chinese) in TEXTS.items()}
        names |= {name: names[control] for name, control in _SET_BY.items()}
        sentence = in_chinese(refusal.renamed(names))
    else:
        sentence = str(refusal)
    return writable(sentence).splitlines()[0][:400]


_UNTRANSLATED = ("subject", "kind", "row_names", "column_names", "axis")


def picture_in(picture: Picture, language: str) -> Picture:
    """A picture with its labels in a language; its numbers are the same."""
    return picture if language != "zh" else _in_chinese(picture)


def _in_chinese(value: Any) -> Any:
    if isinstance(value, str):
        return translated(value)
    if isinstance(value, tuple):
        return tuple(_in_chinese(item) for item in value)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    fields = [field.name for field in dataclasses.fields(value) if field.name not in _UNTRANSLATED]
    return dataclasses.replace(value, **{name: _in_chinese(getattr(value, name)) for name in fields})
