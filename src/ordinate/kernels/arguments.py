"""The named tuples that kernels take, and those that their helpers pass on.

Triton takes a tuple apart when it compiles a kernel: a bundle costs no more than its fields as arguments of their own.
The order of bundles and fields is the order of the compiled kernel's parameters. Fields in capitals are known when it
is compiled. All others are tensors or numbers where a kernel is launched, and Triton's own values within it.
"""

from __future__ import annotations

from collections import namedtuple

# The parts of a bias in float32, contiguous: slopes [heads], table [heads, table_len], key [batch, heads, k_len],
# row [batch, heads, q_len, row_len], key_row [batch, heads, k_len, row_len]. An absent part has the pointer of another
# tensor.
BiasPointers = namedtuple("BiasPointers", "slopes table key row key_row")

# What is known of each token where it is data, each [batch, seq].
TokenPointers = namedtuple(
    "TokenPointers", "q_positions k_positions q_index k_index q_segments k_segments"
)

# The same for kernels that only run where positions are aligned.
IndexPointers = namedtuple("IndexPointers", "q_index k_index q_segments k_segments")

# Of [batch, heads, seq, dim] with unit stride along dim.
Strides = namedtuple("Strides", "batch head token")

# From one row of the batch to the next, or one head to the next; 0 where they share.
BiasStrides = namedtuple("BiasStrides", "key_batch key_head row_batch key_row_batch")

# From one row of the batch to the next, 0 where they share; "queries" and "keys" of indices and segments.
TokenStrides = namedtuple("TokenStrides", "q_positions k_positions queries keys ranges")

# The numbers of a call. A table starts at distance table_lo, rows at row_lo.
Numbers = namedtuple(
    "Numbers", "heads groups q_len k_len scale softcap dropout_p table_len table_lo row_len row_lo"
)

# The first and the last distance of tables and rows, and the window.
Limits = namedtuple("Limits", "lo hi window")

# What an attention kernel is compiled for. D and DV are HEAD_DIM and V_DIM, padded. SHORT: most tiles lie beyond the
# tables. COMPLETE: the table has every distance that is seen. TILES_BEYOND: tiles beyond the tables have loops of their
# own. PACKED: the rows of a tile are of all query heads that share keys.
Kind = namedtuple(
    "Kind",
    "HEAD_DIM V_DIM D DV PRECISION LINEAR SYMMETRIC TABLE KEY ROW KEY_ROW ALIGNED SOFTCAP DROPOUT CAUSAL WINDOWED "
    "INDEXED SEGMENTS ALL_MASKED SHORT COMPLETE TILES_BEYOND PACKED",
    defaults=(False, False, False, False),
)

# Where the gradients of what a query owns go, and what it pulls at the two ends of a table.
QueryGradients = namedtuple("QueryGradients", "q row past future")

# Which of them are computed. ORDERED: added in one order. BALANCED: `shared` is corrected. LSE: there are gradients of
# logsumexps.
WantedOfQueries = namedtuple("WantedOfQueries", "TABLE_ENDS ROW ORDERED BALANCED LSE")

# Where the gradients of what a key owns go, and those of slopes and of a table at positions that are data.
KeyGradients = namedtuple("KeyGradients", "k v key key_row table slope")

# Which of them are computed. EVEN: queries fill their tiles, so that loads need no bounds.
WantedOfKeys = namedtuple("WantedOfKeys", "KEY KEY_ROW TABLE ORDERED SLOPE EVEN")

# The keys and values of one head: where they start, and strides from token to token.
KeysAndValues = namedtuple("KeysAndValues", "k v k_stride v_stride")

# The tokens of one sequence, and the window: what the mask needs to know of them.
Tokens = namedtuple("Tokens", "q_positions k_positions q_index k_index q_segments k_segments window")

# The queries and keys of a tile, shaped to broadcast: their indices, and their positions in int32.
Pairs = namedtuple("Pairs", "qi kj q_pos k_pos")
