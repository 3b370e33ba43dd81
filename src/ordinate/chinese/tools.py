"""Rules of what people touch, and of what is known of encodings: verify, show, plot, the page."""

RULES = {
    "must be from {least} to {most}": "必须在 {least} 到 {most} 之间",
    # the page
    "must be a number from {least} to {most}": "必须是 {least} 到 {most} 之间的数",
    "must be a whole number": "必须是整数",
    "must be true or false": "必须是 true 或 false",
    "must be at most {most} characters": "不能超过 {most} 个字符",
    "nothing has been given yet": "尚未提供任何内容",
    "config": "配置",
    "must be JSON: {problem}": "不是合法的 JSON：{problem}",
    "is nested too deeply": "嵌套过深",
    "must be a JSON object": "必须是 JSON 对象",
    "archive": "压缩包",
    "must be a .zip that can be read": "必须是可以读取的 .zip 文件",
    "one with {error}": "出错的文件（{error}）",
    "must hold one comparison": "只能包含一次比较",
    "{name} twice": "两个 {name}",
    "must hold the sweep.json of a comparison": "必须包含一次比较的 sweep.json",
    "none": "没有",
    "must hold at most {most} records": "最多包含 {most} 个记录文件",
    "must unpack to at most {most} bytes": "解压后不能超过 {most} 字节",
    "more": "更多",
    "must be installed for the page: {command}": "是网页所必需的，请安装：{command}",
    "must name an address of this machine": "必须是本机的一个地址",
}
