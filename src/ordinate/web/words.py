"""The page in two languages: its own words, and the labels of pictures and refusals."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from ..chinese.translate import translated as in_chinese
from ..plots.pictures import Axis, Bars, Heatmap, Lines, Mark, Picture, Plane, Series
from ..text import Text

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
    "first_upload": ("nothing has been given yet", "尚未提供任何内容"),
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

_LABELS = {
    "layers": "层",
    "turns": "圈数",
    "fate": "处理方式",
    "scaled": "缩放后的波长",
    "context in positions": "上下文（位置数）",
    "no limit in the config": "配置中没有上限",
    "codes": "位置编码",
    "encoding": "编码",
    "scaling": "频率缩放",
    "dialect": "变体",
    "factor on cos and sin": "cos 与 sin 的系数",
    "softmax scale": "softmax 缩放",
    "window": "窗口",
    "blended": "混合",
    "interpolated": "插值",
    "still": "不转",
    "position": "位置",
    "channel": "通道",
    "value of the code": "编码值",
    "pair": "通道对",
    "head": "头",
    "wavelength": "波长",
    "wavelength (positions)": "波长（位置数）",
    "wavelength in positions": "波长（位置数）",
    "before scaling": "缩放前",
    "after scaling": "缩放后",
    "as trained": "训练时",
    "kept": "保持",
    "in between": "部分缩放",
    "original": "原始",
    "linear": "线性",
    "first channel of the pair": "该对的第一个通道",
    "second channel": "第二个通道",
    "query position": "查询位置",
    "key position": "键位置",
    "distance, query - key (positions)": "距离：查询 − 键（位置数）",
    "added to the logit": "加到注意力分数上的值",
    "slope (logits per position)": "斜率（每个位置的分数）",
    "bucket": "桶",
    "row": "行",
    "score (logits)": "得分（logits）",
    "score": "得分",
    "cos of the angle": "角度的余弦",
    "looks at": "被关注的词",
    "word": "词",
    "attention weight": "注意力权重",
    "change": "变化",
    "without positions": "无位置信息",
    "shuffled, put back in order": "打乱后放回原顺序",
    "the code of each position": "每个位置的编码",
    "some channels along the positions": "若干通道随位置的变化",
    "the code of some positions across channels": "若干位置的整行编码",
    "a pair turns by its own angle at every position": "每对通道按自己的角速度旋转",
    "cosines along the positions": "余弦随位置的变化",
    "the wavelength of each pair": "每对通道的波长",
    "wavelengths under each scaling": "各种缩放下的波长",
    "the slope of each head": "每个头的斜率",
    "the bucket of each query and key": "每对查询和键的桶",
    "the row of each query and key": "每对查询和键查的行",
    "what each head adds to the scores": "每个头加到分数上的值",
    "what each head adds, by distance": "每个头加的值随距离的变化",
    "score against distance": "得分随距离的变化",
    "attention before and after a shuffle": "打乱前后的注意力",
    "a random token with its like, averaged over signs": "随机词与自身的得分，对符号取平均",
    "one random token with its like: the term depends on the token": "同一个随机词与自身的得分：该项取决于词本身",
    "one scale of colours for all heads": "所有头共用同一色标",
    "a learned table as it is initialised, not as training leaves it": "可学习的表为初始值，不是训练后的值",
    "left channels turn fast and tell neighbours apart, right ones slowly and tell far places apart":
        "左侧通道变化快，区分相邻位置；右侧通道变化慢，区分远处位置",
    "all layers": "所有层",
    "wavelengths of the pairs": "各通道对的波长",
    "the scaling is static: it acts at every length, short contexts included":
        "缩放是静态的：对任何长度都起作用，短上下文也不例外",
    "a learned table ends at its last row: a longer input is an error, not a guess":
        "可学习的表到最后一行为止：更长的输入会报错，而不是猜测",
    "no layer has an encoding; a causal mask alone tells the order": "没有任何层带位置编码；只有因果掩码透露顺序",
    "stretch": "可延长倍数",
    "in-length loss": "训练长度内的损失",
    "in-length accuracy": "训练长度内的准确率",
    "type": "类型",
    "parameters": "参数量",
    "operations": "运算量",
    "memory traffic": "内存读写量",
    "spread over seeds": "随机种子间的差异",
    "gradient spikes": "梯度尖峰",
    "still learning": "仍在学习",
    "speed": "速度",
    "memory": "内存",
    "Perplexity against length": "困惑度随长度的变化",
    "Right answers against length": "正确率随长度的变化",
    "Loss by position in the text": "各位置上的损失",
    "What the extra context is worth": "额外上下文的价值",
    "Stretched without training": "不经训练的扩展",
    "Training": "训练过程",
    "length tested at (tokens)": "测试长度（词元数）",
    "perplexity per token": "每词元困惑度",
    "right answers (%)": "正确率（%）",
    "position in the sequence (tokens)": "序列中的位置（词元数）",
    "loss (nats per token)": "损失（奈特/词元）",
    "loss saved (nats per token)": "节省的损失（奈特/词元）",
    "training loss (nats per token)": "训练损失（奈特/词元）",
    "step": "步数",
    "ignored": "未利用",
    "Lower is better, flat is holding.": "越低越好，平坦即保持。",
    "At the start everyone lacks context; past the dashed line lie positions no model saw in training.":
        "开头人人缺少上下文；虚线以右是训练中从未见过的位置。",
    "Above zero the model makes use of the rest; at zero it ignores it, and a flat perplexity is no merit; below "
    "zero it is harmed.":
        "大于零：模型用上了其余的文本；等于零：忽略它，困惑度平坦便不算优点；小于零：受其损害。",
    "The trained model as it is, and with its frequencies rescaled for evaluation alone: not one weight is changed.":
        "训练好的模型本身，以及仅在评测时缩放其频率：权重一个也不改。",
    "The training loss.": "训练损失。",
    "Every arm has the same model, the same batches in the same order and the same number of steps.":
        "各组的模型、数据批次及其顺序、步数都相同。",
    "characters of the sentence": "句子的字符数",
    "characters of a config": "配置的字符数",
    "config is nested too deeply": "配置嵌套过深",
    "a pair above the line never completes a turn within that length": "线以上的通道对在该长度内转不满一圈",
}  # fmt: skip

# Numbered labels and sentences, with what varies in brackets.
_PATTERNS = (
    (r"channel (\d+)", r"通道 \1"),
    (r"pair (\d+)", r"第 \1 对"),
    (r"position (\d+)", r"位置 \1"),
    (r"head (\d+)", r"头 \1"),
    (r"with (.+)", r"使用 \1"),
    (r"frequency divided by (\S+)", r"频率除以 \1"),
    (r"training length (\d+)", r"训练长度 \1"),
    (r"trained at (\d+)", r"训练长度 \1"),
    (r"pairs (\d+) to (\d+)", r"第 \1 到 \2 对"),
    (r"context (\d+)", r"上下文 \1"),
    (r"the first (\d+) of (\d+) positions", r"只画 \2 个位置中的前 \1 个"),
    (r"distances up to (\d+) have a bucket each", r"距离不超过 \1 时各占一个桶"),
    (r"distances up to (\d+) have a row each", r"距离不超过 \1 时各占一行"),
    (r"each distance has its own", r"每个距离各占一行"),
    (r"all from (\d+) on share the last", r"从 \1 起共用最后一个"),
    (r"(\d+) of (\d+) heads", r"\2 个头中的 \1 个"),
    (r"(.+): wavelengths of the pairs", r"\1：各通道对的波长"),
    (r"(\d+) of (\d+) pairs do not complete a turn within (\d+) positions; past that length .*",
     r"\2 对中有 \1 对在 \3 个位置内转不满一圈；超过该长度会遇到训练中从未见过的角度"),
    (r"(\d+) of (\d+) pairs do not complete a turn within (\d+) positions; at (\d+) positions (\d+) of them go past .*",
     r"\2 对中有 \1 对在 \3 个位置内转不满一圈；到 \4 个位置时其中 \5 对超出该长度内的角度"),
    (r"(\d+) of (\d+) pairs do not complete a turn within (\d+) positions; the scaling keeps them .* up to (\d+)",
     r"\2 对中有 \1 对在 \3 个位置内转不满一圈；缩放使它们到 \4 为止不超出该长度内的角度"),
    (r"dynamic NTK leaves contexts up to (\d+) as they were; .*",
     r"动态 NTK 不改变 \1 以内的上下文；缓存必须保存旋转前的键"),
    (r"LongRoPE switches its divisors at (\d+) tokens; .*", r"LongRoPE 在 \1 个词元处切换除数；缓存必须保存旋转前的键"),
    (r"layers (.+)", r"第 \1 层"),
    (r"layer (\d+)", r"第 \1 层"),
    (r"loss at (\S+)", r"\1 长度的损失"),
    (r"accuracy at (\S+)", r"\1 长度的准确率"),
    (r"rise at (\S+)", r"\1 长度的损失上升"),
    (r"last answers at (\S+)", r"\1 长度末尾答案的准确率"),
    (r"last tokens at (\S+)", r"\1 长度末尾词元的损失"),
    (r"extra context at (\S+)", r"\1 长度的额外上下文"),
    (r"Each model was trained at (\d+) tokens and is tested, unchanged, at every length\.",
     r"每个模型以 \1 个词元训练，不作改动地在各长度上测试。"),
    (r"The share of right answers of the task “(.*)”\.", r"任务“\1”中正确答案的比例。"),
    (r"Where in a sequence of (\d+) tokens the loss comes from\.", r"在 \1 个词元的序列中，损失来自何处。"),
    (r"Every position is compared on the same text: a point is off the model's loss with exactly the last (\d+) tokens "
     r"in view by what its own targets are off it\.",
     r"各位置在同样的文本上比较：一点偏离“恰好只看最近 \1 个词元”时的损失多少，就是它自己的目标偏离多少。"),
    (r"The loss of the same targets with exactly the last (\d+) tokens in view, less the loss with all of the text, "
     r"over targets that see more\.",
     r"同样的目标恰好只看最近 \1 个词元时的损失，减去看到全部文本时的损失，取看得更多的目标。"),
    (r"Bands are 95 % intervals, over text and seeds together\.", r"色带为 95 % 区间，文本与随机种子合在一起。"),
    (r"The training loss, each point the mean of (\d+) logged steps\.", r"训练损失，每点为 \1 个记录步的平均。"),
    (r"Bands are one standard deviation over (?:up to )?(\d+) seeds\.", r"色带为 \1 个随机种子的一个标准差。"),
    (r"One seed each, so there are no bands\.", r"各只有一个随机种子，因此没有色带。"),
    (r"pair (\d+): a turn in (\S+) positions", r"第 \1 对：每 \2 个位置转一圈"),
    (r"(\d+) of (\d+) pairs make a whole turn within the training length", r"\2 对中有 \1 对在训练长度内转满一圈"),
    (r"stretched (\S+) times from (\d+) positions; grey: before scaling", r"从 \2 个位置拉伸 \1 倍；灰色为缩放前"),
    (r"shuffled: (.*)\. Outputs change by (\S+) without positions, by (\S+) with (.*) \(symmetric, for .*\)",
     r"打乱后：\1。输出的变化：无位置信息 \2，使用 \4 为 \3（对称形式，不加掩码）"),
    (r"shuffled: (.*)\. Outputs change by (\S+) without positions, by (\S+) with (.*) \(all under a causal mask.*\)",
     r"打乱后：\1。输出的变化：无位置信息 \2，使用 \4 为 \3（都加因果掩码，掩码本身也透露顺序）"),
    (r"shuffled: (.*)\. Outputs change by (\S+) without positions, by (\S+) with (.*)",
     r"打乱后：\1。输出的变化：无位置信息 \2，使用 \4 为 \3"),
)  # fmt: skip

# What is refused; first comes the name of what was given.
_REFUSALS = (
    (r"(.+) must be from (\S+) to (\S+), got (.+)", r"\1 必须在 \2 到 \3 之间，现在是 \4"),
    (r"(.+) must be a number from (\S+) to (\S+), got (.+)", r"\1 必须是 \2 到 \3 之间的数，现在是 \4"),
    (r"(.+) must be a whole number, got (.+)", r"\1 必须是整数，现在是 \2"),
    (r"(.+) must be at most (\S+)(?: characters)?, got (.+)", r"\1 不能超过 \2，现在是 \3"),
    (r"(.+) must be at least (\S+), got (.+)", r"\1 不能小于 \2，现在是 \3"),
    (r"(.+) must be even, channels turn in pairs, got (.+)", r"\1 必须是偶数（通道成对旋转），现在是 \2"),
    (r"(.+) must be one of (.+), got (.+)", r"\1 必须是以下之一：\2，现在是 \3"),
    (r"(.+) must be true or false, got (.+)", r"\1 必须是 true 或 false，现在是 \2"),
    (r"(.+) must be True or False, got (.+)", r"\1 必须是 true 或 false，现在是 \2"),
    (r"(.+) must be an int, got (.+)", r"\1 必须是整数，现在是 \2"),
    (r"(.+) must be a number, got (.+)", r"\1 必须是数，现在是 \2"),
    (r"(.+) must be finite, got (.+)", r"\1 必须是有限的数，现在是 \2"),
    (r"(.+) must be greater than (\S+), got (.+)", r"\1 必须大于 \2，现在是 \3"),
    (r"config must be a JSON object, got (.+)", r"配置必须是 JSON 对象，现在是 \1"),
    (r"(Expecting|Extra|Invalid|Unterminated)\b(.*: line \d+ column \d+ .*)", r"配置不是合法的 JSON（\1\2）"),
    (r"unknown option '(.*?)' of '(.*?)' in spec .*; did you mean (.*)", r"\2 没有名为 '\1' 的选项，是否想写 \3"),
    (r"unknown option '(.*?)' of '(.*?)' in spec .*; known: (.*)", r"\2 没有名为 '\1' 的选项；可用的有：\3"),
    (r"unknown option '(.*?)' of '(.*?)' in spec .*; it has no options", r"\2 没有选项，也没有 '\1'"),
    (r"option must be written name=value in spec .*, got (.+)", r"选项须写成 name=value，现在是 \1"),
    (r"option '(.*?)' must be given once in spec .*", r"选项 '\1' 只能出现一次"),
    (r"scaling '(.*?)' must follow rope in spec .*", r"缩放 '\1' 必须跟在 rope 之后"),
    (r"rope must have one scaling in spec .*, got a second, '(.*?)'", r"rope 只能有一种缩放，多了 '\1'"),
    (r"'(.*?)' in spec .* needs (\S+); give it as (.*)", r"\1 需要 \2，请写成 \3"),
    (r"text must have (\d+) to (\d+) words, got (\d+)", r"句子必须有 \1 到 \2 个词，现在是 \3"),
    (r"unknown encoding '(.*?)' in spec '(.*?)'; did you mean (.*)", r"没有名为 '\1' 的编码，是否想写 \3"),
    (r"unknown encoding '(.*?)' in spec '(.*?)'; known: (.*)", r"没有名为 '\1' 的编码；可用的有：\3"),
    (r"spec must be text such as 'rope:base=1e6', got (.+)", r"请输入编码描述，例如 rope:base=1e6，现在是 \1"),
)  # fmt: skip


def text(key: str, language: str) -> str:
    """A text of the page; an option that a registered encoding brings is called by its own name."""
    return TEXTS.get(key, (key, key))[language == "zh"]


def say(sentence: str, language: str) -> str:
    """A label or sentence of the library in a language; what has no translation stays English.

    Example:
        >>> say("pair 3", "zh"), say("pair 3", "en")
        ('第 3 对', 'pair 3')
    """
    if language != "zh":
        return sentence
    found = in_chinese(sentence) if isinstance(sentence, Text) else _said(sentence)
    if found is None and ". " in sentence:
        parts = [_said(part) for part in re.split(r"(?<=\.) ", sentence)]
        found = None if None in parts else "".join(part or "" for part in parts)
    if found is None and "; " in sentence:
        notes = sentence.split("; ")
        found = "；".join(_said(note) or note for note in notes) if any(map(_said, notes)) else None
    return sentence if found is None else found


def _said(sentence: str) -> str | None:
    if sentence in _LABELS:
        return _LABELS[sentence]
    for pattern, chinese in _PATTERNS:
        match = re.fullmatch(pattern, sentence)
        if match:
            return match.expand(chinese)
    for pattern, chinese in _REFUSALS:
        match = re.fullmatch(pattern, sentence)
        if match:
            name = re.sub(r"^(\w+) of an example$", r"示例的 \1", match.group(1))
            name = re.sub(r"^numbers in the table of (\w+)$", r"\1 表中的数", name)
            return match.expand(chinese).replace(match.group(1), _LABELS.get(name, name), 1)
    return None


def translated(picture: Picture, language: str) -> Picture:
    """A picture with its labels in a language; its numbers are the same."""
    return picture if language != "zh" else _translated(picture, language)


_PARTS = (Picture, Lines, Heatmap, Bars, Plane, Series, Mark, Axis)
_UNTOUCHED = ("subject", "kind", "row_names", "column_names", "axis")


def _translated(value: Any, language: str) -> Any:
    if isinstance(value, str):
        return say(value, language)
    if isinstance(value, tuple):
        return tuple(_translated(item, language) for item in value)
    if not isinstance(value, _PARTS):
        return value
    changed = {
        field.name: _translated(getattr(value, field.name), language)
        for field in dataclasses.fields(value)
        if field.name not in _UNTOUCHED
    }
    return dataclasses.replace(value, **changed)
