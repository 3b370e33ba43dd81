"""Rules of models of transformers: configs, patches, checkpoints."""

RULES = {
    "must be at least {least} and at most {most}": "必须在 {least} 到 {most} 之间",
}

# patch, unpatch and streaming caches
RULES |= {
    "needs transformers: {command}": "需要 transformers：{command}",
    "must be a PreTrainedModel of transformers": "必须是 transformers 的 PreTrainedModel",
    "must be a PreTrainedModel of transformers, such as get_base_model() gives": (
        "必须是 transformers 的 PreTrainedModel，例如 get_base_model() 的返回值"
    ),
    "must not be patched already": "不能是已经打过补丁的模型",
    "must have its weights loaded": "必须已经加载权重",
    "must answer as before once it is patched": "打补丁后的输出必须与之前一致",
    "; it is left as it was": "；模型已恢复原状",
    "must be one that patch was given": "必须是打过补丁的模型",
    "must rotate queries and keys or bias its logits by position (RoPE, T5, ALiBi) in a way "
    "that can be taken over": "必须按位置旋转查询和键，或给 logits 加偏置（RoPE、T5、ALiBi），并且可以由 ordinate 接管",
    "must be unpatched before it is pickled whole (state_dict and save_pretrained work as it is)": (
        "在整体 pickle 之前必须先 unpatch（state_dict 和 save_pretrained 可以直接使用）"
    ),
    "must be '{name}' where cached keys are rotated anew (dynamic NTK, LongRoPE, a streaming cache)": (
        "在缓存的键需要重新旋转时（dynamic NTK、LongRoPE、流式缓存）必须是 '{name}'"
    ),
    ": choose it by set_attn_implementation('{name}'), or unpatch the model": (
        "：请用 set_attn_implementation('{name}') 选择它，或对模型调用 unpatch"
    ),
    "must not be '{name}' for {layer}, for {reason}": "对 {layer} 不能是 '{name}'，原因：{reason}",
    "must not be a static cache where cached keys are rotated anew (dynamic NTK, LongRoPE) "
    "and the mask has rules other than causality, windows, chunks and padding": (
        "在缓存的键需要重新旋转（dynamic NTK、LongRoPE），且掩码含有因果、窗口、分块和填充以外的规则时，不能是静态缓存"
    ),
    "must be rotated whole and together, and go to attention unchanged, where cached keys "
    "are rotated anew (dynamic NTK, LongRoPE, a streaming cache)": (
        "在缓存的键需要重新旋转时（dynamic NTK、LongRoPE、流式缓存），必须整体一起旋转，并原样传给注意力"
    ),
    "must be consecutive with a cache and a scaling that depends on the length "
    "(dynamic NTK, LongRoPE), for cached keys stand right before them": (
        "使用缓存和依赖长度的缩放（dynamic NTK、LongRoPE）时必须连续，因为缓存的键紧接在它们之前"
    ),
    "must be causal, with padding at most, for Falcon's ALiBi": "对 Falcon 的 ALiBi 必须是因果掩码，最多带填充",
    "must not be cropped, what it dropped is gone": "不能裁剪，已丢弃的内容无法恢复",
    "must not be a streaming cache unless the model is patched": "模型未打补丁时不能是流式缓存",
    "must not be a streaming cache where keys are not known to be cached unrotated (its own code "
    "rotates them, rotates a part of them, or changes them afterwards)": (
        "在无法确认键以未旋转的形式缓存时（模型自身的代码旋转了它们、只旋转一部分或之后又修改它们），不能是流式缓存"
    ),
    "must not be a streaming cache in a model with layers that cache something else than keys and values "
    "(a convolution, linear attention, an indexer)": (
        "模型中有的层缓存键和值以外的内容（卷积、线性注意力、索引器）时，不能是流式缓存"
    ),
    "must not be a streaming cache in a call that the model's own code answers (attention weights, a mask "
    "of four dimensions)": "由模型自身的代码计算的调用（返回注意力权重，或使用四维掩码）不能用流式缓存",
    "must be all ones with a streaming cache, which may drop what is masked": (
        "使用流式缓存时必须全为 1，因为缓存可能丢弃被掩盖的内容"
    ),
}
