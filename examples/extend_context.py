"""A model trained on 2048 tokens, stretched to 8192: what each scaling does to each pair."""

import math

from ordinate import RoPE, scaling

TRAINED, FACTOR, HEAD_DIM = 2048, 4, 64
SCALINGS = {
    "linear": scaling.Linear(FACTOR),
    "ntk": scaling.NTK(FACTOR),
    "yarn, hf": scaling.YaRN(FACTOR, TRAINED),
    "yarn, paper": scaling.YaRN(FACTOR, TRAINED, dialect="paper"),
    "yarn, minimind": scaling.YaRN(FACTOR, TRAINED, dialect="minimind"),
    "yarn, gpt-oss": scaling.YaRN(FACTOR, TRAINED, truncate=False),
}

plain = RoPE(HEAD_DIM).inv_freq()
pairs = range(0, HEAD_DIM // 2, 4)
print("pair               ", *(f"{pair:>6}" for pair in pairs))
print("turns in training  ", *(f"{TRAINED * plain[pair] / (2 * math.pi):6.1f}" for pair in pairs))
print("frequency divided by")
for name, each in SCALINGS.items():
    divided = plain / RoPE(HEAD_DIM, scaling=each).inv_freq()
    row = " ".join(f"{divided[pair]:6.2f}" for pair in pairs)
    print(f"  {name:<17} {row}   attention factor {each.attention_factor:.3f}")

slowest = {
    round(float(plain[-1] / each.inv_freq(10000.0, HEAD_DIM)[-1]), 6) for each in SCALINGS.values()
}
print("slowest pair divided by", *(f"{value:g}" for value in slowest), "in all of them")
