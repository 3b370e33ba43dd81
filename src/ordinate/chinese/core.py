"""Rules of the core: arguments, positions, biases, attention, specs."""

RULES = {
    "must be a tensor [{axes}]": "必须是形状为 [{axes}] 的张量",
    "must have shape [{axes}]": "形状必须是 [{axes}]",
    "must hold at least one distance": "至少要有一个距离",
    "must be an int, the distance {table} starts from": "必须是整数，即 {table} 的起始距离",
    "must be floating point": "必须是浮点数",
    "must be floating point of at least 16 bits": "必须是至少 16 位的浮点数",
    "must be True or False": "必须是 True 或 False",
    "must be an int": "必须是整数",
    "must fit in 64 bits": "必须能用 64 位表示",
    "must be at least {least}": "不能小于 {least}",
    "must be at most {most}": "不能超过 {most}",
    "must be a sequence of {of}": "必须是由 {of} 组成的序列",
    "must be even, channels turn in pairs": "必须是偶数（通道成对旋转）",
    "must be a number": "必须是数",
    "must be finite": "必须是有限的数",
    "must be greater than {least}": "必须大于 {least}",
    "must be in 0 … {last} (max_positions={bound})": "必须在 0 到 {last} 之间（max_positions={bound}）",
    "must have d_model {d_model}": "d_model 必须是 {d_model}",
    "must be one of {choices}": "必须是以下之一：{choices}",
    # files
    "there is no room on disk for {path}": "磁盘空间不足，无法写入 {path}",
    "must not be written by two processes at once (remove {folder} next to it if none does)": "不能由两个进程同时写入（如果没有进程在写，请删除旁边的 {folder}）",
}
