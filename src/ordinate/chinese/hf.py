"""Rules of models of transformers: configs, patches, checkpoints."""

RULES = {
    "must be at least {least} and at most {most}": "必须在 {least} 到 {most} 之间",
    # configs: where they come from, and their families
    "must be a mapping, a path or a PretrainedConfig": "必须是映射、路径或 PretrainedConfig",
    "must be a config.json or a folder with one": "必须是 config.json，或含有它的文件夹",
    "must be a folder with a config.json": "必须是含有 config.json 的文件夹",
    "must be a file of at most 16 MiB": "必须是不超过 16 MiB 的文件",
    "{size} bytes in {path}": "{path} 中的 {size} 字节",
    "must be a file that can be read": "必须是可以读取的文件",
    "must be valid JSON": "必须是有效的 JSON",
    "must hold a mapping of settings": "内容必须是由设置组成的映射",
    "must have text for keys": "键必须是文本",
    "must be a family that ordinate reads": "必须是 ordinate 能读取的模型系列",
    "must be a model_type that ordinate reads": "必须是 ordinate 能读取的 model_type",
    "{near}": "{near}",
    "must be asked of plan.layers or plan.embeddings where they differ": "在各层或各嵌入不同时，必须从 plan.layers 或 plan.embeddings 中读取",
    # configs: keys and their values
    "must be given, it is {meaning}": "必须给出，它的含义是：{meaning}",
    "must be between {least} and {most}": "必须在 {least} 到 {most} 之间",
    "must be greater than {least} and at most {most}": "必须大于 {least}，且不超过 {most}",
    "must be known": "必须是已知的值",
    "must be a list": "必须是列表",
    "must have {length} entries": "必须有 {length} 项",
    "must be a mapping": "必须是映射",
    "must be {expected}, this model's code knows no other": "必须是 {expected}，该模型的代码不支持其他值",
    "must be a setting that ordinate understands for this model": "必须是 ordinate 对该模型能理解的设置",
    "must agree with what this model's other settings say, {expected}": "必须与该模型其他设置一致，即 {expected}",
    "{taken}={value} and {other}={ignored} differ; the first is taken, as transformers does": "{taken}={value} 与 {other}={ignored} 不同；与 transformers 一样，取前者",
    "{ignored}={length} and {taken}={context} differ; the second is taken, as transformers does": "{ignored}={length} 与 {taken}={context} 不同；与 transformers 一样，取后者",
    "{key} is missing; {value} is taken, as transformers does": "缺少 {key}；与 transformers 一样，取 {value}",
    # configs: rotation and its scaling
    "rope_scaling and rope_parameters differ; the first is taken, as transformers does": "rope_scaling 与 rope_parameters 不同；与 transformers 一样，取前者",
    "must have one mapping for each layer type of this model": "必须为该模型的每种层类型各给一个映射",
    "must stand within a layer type's settings": "必须写在某种层类型的设置中",
    "must be given, layers are of that type": "必须给出，因为有这种类型的层",
    "{key} has no effect, no layer is of the type it is for": "{key} 不起作用：没有它所针对类型的层",
    "{key} has no effect, no layer is of that type": "{key} 不起作用：没有该类型的层",
    "{key} has no effect with rope_type {rope_type}": "rope_type 为 {rope_type} 时 {key} 不起作用",
    "{path}rope_type and {path}type differ; rope_type={given} is taken": "{path}rope_type 与 {path}type 不同；取 rope_type={given}",
    "{key}={value} does not change cos and sin without the other mscale, as in transformers: they are multiplied by "
    "{attention}": "缺少另一个 mscale 时 {key}={value} 不改变 cos 和 sin，与 transformers 相同：它们乘以 {attention}",
    "must say what {option} is for": "必须说明 {option} 用于哪种缩放",
    "must describe a rotation": "必须能描述一个旋转编码",
    "must leave an even number of a head's {channels} channels to turn": "必须使每个头的 {channels} 个通道中有偶数个参与旋转",
    "must be given for {pairs} pairs, the model's code assumes {assumed}": "对于 {pairs} 对通道必须给出，该模型的代码假定 {assumed}",
    "must sum to the {pairs} pairs that turn": "总和必须等于参与旋转的 {pairs} 对通道",
    "must be {expected} for this model, whose code deals axes {layout}": "对该模型必须是 {expected}，其代码按 {layout} 方式分配各轴",
    "must be given, dynamic scaling starts there": "必须给出，动态缩放从该长度开始",
    "must be at least beta_slow {slow}": "不能小于 beta_slow {slow}",
    "must be at least low_freq_factor {low}": "不能小于 low_freq_factor {low}",
    "must be a RoPE": "必须是 RoPE",
    "must be one that checkpoints use": "必须是检查点所使用的缩放",
    # configs: single families
    "{key} {window} has no effect, no layer of this model is windowed": "{key} {window} 不起作用：该模型没有带窗口的层",
    "inference_rope_scaling has no effect up to {original} positions, got {context}": "不超过 {original} 个位置时 inference_rope_scaling 不起作用，现在是 {context}",
    "rope_scaling has no effect, MiniMind's code reads inference_rope_scaling alone": "rope_scaling 不起作用：MiniMind 的代码只读取 inference_rope_scaling",
    "must be true, MPT without ALiBi is not supported": "必须是 true，不支持没有 ALiBi 的 MPT",
    "must be false, other masks are not supported": "必须是 false，不支持其他掩码",
    "and relative_attention_max_distance must fit together: {problem}": "与 relative_attention_max_distance 必须相互匹配：{problem}",
    "must be 0 or 1": "必须是 0 或 1",
    "must be greater than the {offset} rows before position 0": "必须大于位置 0 之前的 {offset} 行",
    "must be even for sinusoids": "使用正弦编码时必须是偶数",
    "must describe {count} layers": "必须描述 {count} 层",
    "must be made of 'global' and 'local'": "必须由 'global' 和 'local' 组成",
    "must hold pairs of types and a number": "每项必须是一组层类型和一个数",
    "must be a number or made of L and G": "必须是数，或由 L 和 G 组成",
    "must be true, false, 'all' or 'vision'": "必须是 true、false、'all' 或 'vision'",
    "must be the index of a layer, of {layers}": "必须是层的编号，共 {layers} 层",
    "must be one for all of {kind}": "对所有 {kind} 层必须相同",
    # extension of a config
    "must be more than the {context} positions the model already reads": "必须大于该模型已能读取的 {context} 个位置",
    "must be a length from which {method} slows the slowest pair and reaches {to}": "必须是这样的长度：从它开始，{method} 使最慢的通道对变慢并达到 {to}",
    ": the new config would read {reached} positions, and that pair turn {times} times slower than now": "：新配置能读取 {reached} 个位置，该通道对的旋转将比现在慢 {times} 倍",
    "must be given, whether {key} {context} is before or after linear scaling by {factor} the config does not say": "必须给出：配置没有说明 {key} {context} 是乘以线性缩放倍数 {factor} 之前还是之后的长度",
    "must say what the model was trained at": "必须说明模型的训练长度",
    "; give original_max_positions": "；请给出 original_max_positions",
    "must be one whose code reads its scaling from the config": "必须是代码从配置中读取缩放的模型",
    "must be a rotary model, which has frequencies to scale": "必须是使用旋转编码的模型，才有频率可缩放",
    "must hold what JSON can hold": "内容必须能写成 JSON",
    "must be of a kind that a scaling can stand beside, p-RoPE's pairs are spread over the whole head as in no other": "必须是可以与缩放并用的类型；p-RoPE 的通道对分布在整个头上，与其他类型都不同",
    "must be absent or of the method {method}, the model may have been trained with it": "必须省略，或采用 {method} 方法；模型可能就是用它训练的",
    "must leave at least 4 channels to turn to change the base": "要改变底数，至少要有 4 个通道参与旋转",
    "attention_factor {given} belonged to the old factor and is left out; the new one's is taken": "attention_factor {given} 属于旧的倍数，已略去；改用新倍数对应的值",
    "must be a file to write": "必须是要写入的文件",
    "the folder {path}": "文件夹 {path}",
    "must not exist, nothing is overwritten unless told": "必须不存在；除非明确要求，不会覆盖任何文件",
    "must be in a folder that can be written": "必须位于可以写入的文件夹中",
    "must have a rotation to draw its wavelengths": "必须含有旋转编码，才能画出波长",
    # multimodal positions
    "must be bool with the shape of token_types {shape}": "必须是布尔张量，形状与 token_types 相同，即 {shape}",
    "seconds_per_grid and tokens_per_second must be left out with style {style}": "style 为 {style} 时必须省略 seconds_per_grid 和 tokens_per_second",
    "must have one grid for each run of its tokens": "每一段连续的词元都必须有一个网格",
    "more grids than runs": "网格比段数多",
    "too few": "网格太少",
    "must be 0 for text, 1 for image and 2 for video": "必须用 0 表示文本，1 表示图像，2 表示视频",
    "must match token_types": "必须与 token_types 一致",
    "a grid of {patches} merged patches for {tokens} tokens": "{tokens} 个词元对应 {patches} 个合并图块的网格",
    "must be (time, height, width)": "必须是 (时间, 高, 宽)",
    "must have a height and width that merge_size {merge_size} divides": "高和宽必须能被 merge_size {merge_size} 整除",
    "must have one number for each video": "每个视频都必须有一个数",
    "{count} for {videos}": "{videos} 个视频有 {count} 个数",
    # checkpoints and their files
    "must be a safetensors file or a model's folder": "必须是 safetensors 文件或模型的文件夹",
    "must be a safetensors file": "必须是 safetensors 文件",
    "{file}, which is not a file": "{file}，它不是文件",
    "{file} of {size} bytes": "{size} 字节的 {file}",
    "{file} with a header that cannot be read": "{file}，其文件头无法读取",
    "__metadata__ of {file}": "{file} 的 __metadata__",
    "must be text by names": "必须是名称到文本的映射",
    "must have its tensors end to end": "其中的张量必须首尾相接",
    "a gap at {tensor}": "{tensor} 处有间隔",
    "must be a whole file": "必须是完整的文件",
    "{file} of {size} bytes instead of {expected}": "{file} 有 {size} 字节，而应有 {expected} 字节",
    "must have a dtype, a shape and data_offsets in the header": "在文件头中必须有 dtype、shape 和 data_offsets",
    "{key} of {tensor}": "{tensor} 的 {key}",
    "must be one of safetensors": "必须是 safetensors 的 dtype",
    "must be a list of sizes": "必须是由大小组成的列表",
    "must be two sizes": "必须是两个大小",
    "must be as far apart as {dtype} {shape} is long": "间距必须等于 {dtype} {shape} 的字节数",
    "must stay as it is while it is read": "在读取期间不能改变",
    "{missing} bytes less": "少了 {missing} 字节",
    "must not exist": "必须不存在",
    "must be in a folder that exists": "必须位于已存在的文件夹中",
    "must be in a folder that can be written, with room for the name {partial} too": "必须位于可以写入的文件夹中，并且允许名称 {partial}",
    "must hold files, links to files and folders": "只能含有文件、指向文件的链接和文件夹",
    "{path}, which is none": "{path}，它不是其中任何一种",
    "must hold queries and keys beside its config.json only": "只能在 config.json 所在的文件夹中含有查询和键",
    "{tensor} in the folder {folder}": "文件夹 {folder} 中的 {tensor}",
    "must hold weights as safetensors": "必须含有 safetensors 格式的权重",
    "must hold every file that {index} names": "必须含有 {index} 列出的每个文件",
    "no {name}": "缺少 {name}",
    "must not be in the {layout} layout already": "不能已经是 {layout} 布局",
    "must hold projections of {side}": "必须含有{side}的投影",
    "{name} in {file}": "{file} 中的 {name}",
    "must hold the layers of one model once": "必须只含一个模型的各层，且每层只有一次",
    "{first} and {second}": "{first} 和 {second}",
    "must be of a model with RoPE": "必须属于使用 RoPE 的模型",
    "must be false where keys are to turn": "要旋转键时必须是 false",
    "must hold queries and keys as plain weights and biases of known names in {layers} layers": "查询和键必须是 {layers} 层中名称已知的普通权重和偏置",
    "must have {rows} rows by the config": "按配置必须有 {rows} 行",
    "must have rows of whole bytes": "每行必须是整数个字节",
    "must be of a known kind of fused projection": "必须是已知类型的合并投影",
    # checkpoints and configs: end
    # patch, unpatch and streaming caches
    "answers {apart} of their size apart ({request})": "输出的相对差异为 {apart}（{request}）",
    "attention by ordinate does not answer as before: {problem}": "ordinate 的注意力与之前的输出不一致：{problem}",
    "a patched {kind}": "打过补丁的 {kind}",
    "{kind} on the meta device": "meta 设备上的 {kind}",
    "{kind} with {problem}": "{kind}：{problem}",
    "{kind} ({reasons})": "{kind}（{reasons}）",
    "none of its layers attends through transformers' attention interface": (
        "没有任何一层使用 transformers 的注意力接口"
    ),
    "{kinds}: it makes no rotations from position_ids": "{kinds}：它不由 position_ids 生成旋转",
    "its attention layers have neither a rotation nor a bias that ordinate knows": (
        "它的注意力层既没有 ordinate 认识的旋转，也没有认识的偏置"
    ),
    "a patched one": "打过补丁的模型",
    "a static one": "静态缓存",
    "queries and keys": "查询和键",
    "a layer that does it in another way": "以其他方式处理的层",
    "another kind": "其他掩码",
    "one": "流式缓存",
    "those of layer {index}": "第 {index} 层的键",
    "padding": "填充",
    "a streaming cache": "流式缓存",
    "it masks in another way for implementations that it does not know": "对不认识的实现，它以另一种方式使用掩码",
    "it treats a mask in another way that is not a tensor": "掩码不是张量时，它以另一种方式处理",
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
    "; if it is built like one of them, say so with {option}{near}": "；如果它的结构与其中之一相同，请用 {option} 指明{near}",
    "; say {replace} to take it away": "；如要去掉它，请给出 {replace}",
    "nothing": "没有给出",
    "{value}, which leaves {rest}": "{value}（剩下 {rest}）",
    "'minimind', which has inference_rope_scaling and no other": "'minimind'，它只有 inference_rope_scaling",
}
