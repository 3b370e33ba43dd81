"""The named tuples that kernels and their helpers take.

Triton flattens a tuple when it compiles a kernel: a named tuple costs as much as its fields as separate arguments.
The order of the tuples and fields is the order of the compiled kernel's parameters. Fields in capitals are
``constexpr``. All other fields are tensors or numbers at the launch, and Triton values inside the kernel.
"""

from __future__ import annotations

from collections import namedtuple

# The parts of a bias in float32, contiguous: slopes [heads], table [heads, table_len], key [batch, heads, k_len],
# row [batch, heads, q_len, row_len], key_row [batch, heads, k_len, row_len]. An absent part has the pointer of
# another tensor.
BiasPointers = namedtuple("BiasPointers", "slopes table key row key_row")

# Per-token data, each [batch, seq].
TokenPointers = namedtuple(
    "TokenPointers", "q_positions k_positions q_index k_index q_segments k_segments"
)

# TokenPointers without positions, for kernels that only run where positions are aligned.
IndexPointers = namedtuple("IndexPointers", "q_index k_index q_segments k_segments")

# The strides of a tensor [batch, heads, seq, dim] with unit stride along dim.
Strides = namedtuple("Strides", "batch head token")

# Strides between rows of the batch, or between heads; 0 where they share the tensor.
BiasStrides = namedtuple("BiasStrides", "key_batch key_head row_batch key_row_batch")

# Strides between rows of the batch, 0 where they share the tensor; "queries" and "keys" for indices and segments.
TokenStrides = namedtuple("TokenStrides", "q_positions k_positions queries keys ranges")

# The numbers of a call. A table starts at distance table_lo, rows at row_lo.
Numbers = namedtuple(
    "Numbers", "heads groups q_len k_len scale softcap dropout_p table_len table_lo row_len row_lo"
)

# The first and the last distance of tables and rows, and the window.
Limits = namedtuple("Limits", "lo hi window")

# What an attention kernel is compiled for. D and DV are HEAD_DIM and V_DIM, padded. SHORT: most tiles lie beyond the
# tables. COMPLETE: the table has every visible distance. TILES_BEYOND: tiles beyond the tables have separate loops.
# PACKED: a tile holds the rows of all query heads that share keys.
Kind = namedtuple(
    "Kind",
    "HEAD_DIM V_DIM D DV PRECISION LINEAR SYMMETRIC TABLE KEY ROW KEY_ROW ALIGNED SOFTCAP DROPOUT CAUSAL WINDOWED "
    "INDEXED SEGMENTS ALL_MASKED SHORT COMPLETE TILES_BEYOND PACKED",
    defaults=(False, False, False, False),
)

# Outputs: the gradients of the tensors indexed by queries, and each query's sums for the two ends of a table.
QueryGradients = namedtuple("QueryGradients", "q row past future")

# Which QueryGradients are computed. ORDERED: sums are added in a fixed order. BALANCED: the kernel corrects `shared`.
# LSE: there are gradients of logsumexps.
WantedOfQueries = namedtuple("WantedOfQueries", "TABLE_ENDS ROW ORDERED BALANCED LSE")

# Outputs: the gradients of the tensors indexed by keys, of slopes, and of a table where positions are data.
KeyGradients = namedtuple("KeyGradients", "k v key key_row table slope")

# Which KeyGradients are computed. EVEN: queries fill their tiles, so loads need no bounds.
WantedOfKeys = namedtuple("WantedOfKeys", "KEY KEY_ROW TABLE ORDERED SLOPE EVEN")

# The keys and values of one head: their start addresses, and the strides between tokens.
KeysAndValues = namedtuple("KeysAndValues", "k v k_stride v_stride")

# What the mask reads: the tokens of one sequence, and the window.
Tokens = namedtuple("Tokens", "q_positions k_positions q_index k_index q_segments k_segments window")

# The queries and keys of a tile, shaped to broadcast: their indices, and their positions in int32.
Pairs = namedtuple("Pairs", "qi kj q_pos k_pos")
