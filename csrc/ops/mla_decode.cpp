// mla_decode: checks, workspace size and registration. Contract: docs/contracts/mla_decode.md.
#include <algorithm>

#include "attention/checks.h"
#include "core/operator.h"
#include "kernels/mla_decode.h"

namespace kernelpair {
namespace {

constexpr int64_t kAuto = -1;
constexpr int64_t kMostSplits = 128;  // of a whole batch, if they are chosen automatically
// Of an automatic split, at least: a partial row of 512 floats costs as much as 2 keys.
constexpr int64_t kSplitKeys = 512;
constexpr int64_t kLeastPage = 16;

void check_extents(std::initializer_list<std::pair<const char*, int64_t>> extents) {
  for (const auto& [name, extent] : extents)
    KP_CHECK_VALUE(extent >= 0, name, " must not be negative, got ", extent);
}

// What no workspace holds, and eight times which still fits 64 bits.
constexpr int64_t kTooMany = int64_t{1} << 56;

int64_t times(int64_t a, int64_t b) {
  int64_t product;
  return __builtin_mul_overflow(a, b, &product) ? kTooMany : std::min(product, kTooMany);
}

// The largest power of two so that all requests together have at most kMostSplits; fewer where the keys are
// few.
int64_t auto_splits(int64_t max_seq_len, int64_t num_batches) {
  int64_t share = 1;
  const int64_t most = kMostSplits / std::max<int64_t>(num_batches, 1);
  while (2 * share <= most) share *= 2;
  return std::max<int64_t>(1, std::min(share, divide_up(max_seq_len, kSplitKeys)));
}

// Splits of the whole batch; a single split a request needs no room.
int64_t partials(int64_t max_seq_len, int64_t num_batches, int64_t num_kv_splits) {
  const int64_t splits = num_kv_splits == kAuto ? auto_splits(max_seq_len, num_batches) : num_kv_splits;
  return splits > 1 ? times(num_batches, splits) : 0;
}

// Over all batches up to num_batches: between powers of two the number grows with the batch, and from one
// power of two to the next it does not fall until a request has but one split.
int64_t most_partials(int64_t max_seq_len, int64_t num_batches, int64_t num_kv_splits) {
  int64_t power = 1;
  while (2 * power <= num_batches && 2 * power < kMostSplits) power *= 2;
  return std::max(partials(max_seq_len, num_batches, num_kv_splits),
                  num_kv_splits == kAuto ? partials(max_seq_len, power, kAuto) : 0);
}

int64_t _mla_auto_splits(int64_t max_seq_len, int64_t num_batches, int64_t num_heads, int64_t page_size) {
  check_extents({{"max_seq_len", max_seq_len},
                 {"num_batches", num_batches},
                 {"num_heads", num_heads},
                 {"page_size", page_size}});
  return auto_splits(max_seq_len, num_batches);
}

int64_t _mla_decode_workspace_size(int64_t max_seq_len, int64_t num_batches, int64_t num_heads,
                                   int64_t page_size, int64_t latent_dim, int64_t num_kv_splits) {
  check_extents({{"max_seq_len", max_seq_len},
                 {"num_batches", num_batches},
                 {"num_heads", num_heads},
                 {"page_size", page_size},
                 {"latent_dim", latent_dim}});
  KP_CHECK_VALUE(num_kv_splits == kAuto || num_kv_splits >= 1, "num_kv_splits must be -1 or at least 1, got ",
                 num_kv_splits);
  if (max_seq_len == 0 || num_batches == 0 || num_heads == 0 || latent_dim == 0 || page_size < kLeastPage)
    return 0;
  const int64_t rows = times(most_partials(max_seq_len, num_batches, num_kv_splits), num_heads),
                floats = times(rows, latent_dim);
  KP_CHECK_VALUE(floats < kTooMany, "num_kv_splits ", num_kv_splits,
                 " needs a workspace of more than 2^58 bytes");
  return round_up(floats * 4, kWorkspacePiece) + 2 * round_up(rows * 4, kWorkspacePiece);
}

void check_pages(const View& seq_lens, const View& page_table, int64_t pages, int64_t page) {
  for (int64_t b = 0; b < seq_lens.sizes[0]; ++b) {
    const int64_t keys = index_at(seq_lens, b);
    KP_CHECK_VALUE(keys >= 0, "seq_lens[", b, "] = ", keys, " is negative");
    const int64_t used = keys / page + (keys % page != 0);
    KP_CHECK_INDEX(used <= page_table.sizes[1], "seq_lens[", b, "] = ", keys, " needs ", used, " pages of ",
                   page, " keys, page_table has ", page_table.sizes[1], " columns");
    check_table_entries({"page_table", page_table}, b, 0, used, pages, b);
  }
}

Tensor mla_decode(const Tensor& q_nope_in, const Tensor& q_pe_in, const Tensor& kv_cache_in,
                  const Tensor& seq_lens_in, const Tensor& page_table_in, const Tensor& workspace_in,
                  double sm_scale, int64_t num_kv_splits, bool accurate) {
  const View q_nope = view_of("q_nope", q_nope_in), q_pe = view_of("q_pe", q_pe_in);
  const View kv_cache = view_of("kv_cache", kv_cache_in), workspace = view_of("workspace", workspace_in);
  const View seq_lens = view_of("seq_lens", seq_lens_in), page_table = view_of("page_table", page_table_in);
  check_dense(3, {{"q_nope", q_nope}, {"q_pe", q_pe}, {"kv_cache", kv_cache}});
  check_float({"q_nope", q_nope});
  check_same_dtype({"q_nope", q_nope}, {{"q_pe", q_pe}, {"kv_cache", kv_cache}});
  const int64_t batch = q_nope.sizes[0], heads = q_nope.sizes[1], Dl = q_nope.sizes[2], Dr = q_pe.sizes[2];
  const int64_t pages = kv_cache.sizes[0], page = kv_cache.sizes[1];
  check_shape({"q_pe", q_pe}, {batch, heads, Dr});
  check_shape({"kv_cache", kv_cache}, {pages, page, Dl + Dr});
  KP_CHECK_VALUE(page == 16 || page == 32 || page == 64 || page == 128, "kv_cache has pages of ", page,
                 " keys, expected 16, 32, 64 or 128");
  check_attention({heads, 1, Dl + Dr, Dl, q_nope.dtype}, sm_scale, 0, View{});
  check_index_dtype({"seq_lens", seq_lens});
  check_shape({"seq_lens", seq_lens}, {batch});
  check_index_dtype({"page_table", page_table});
  check_rank({"page_table", page_table}, 2);
  check_shape({"page_table", page_table}, {batch, page_table.sizes[1]});
  check_pages(seq_lens, page_table, pages, page);

  int64_t longest = 0;
  for (int64_t b = 0; b < batch; ++b) longest = std::max(longest, index_at(seq_lens, b));
  const int64_t needed = _mla_decode_workspace_size(longest, batch, heads, page, Dl, num_kv_splits);
  check_rank({"workspace", workspace}, 1);
  check_dtype({"workspace", workspace}, {Dtype::u8});
  KP_CHECK_VALUE(workspace.sizes[0] <= 1 || workspace.strides[0] == 1, "workspace must be contiguous");
  KP_CHECK_VALUE(workspace.sizes[0] >= needed, "workspace has ", workspace.sizes[0], " bytes, ", needed,
                 " are needed for seq_lens up to ", longest);
  check_disjoint({{"workspace", workspace}}, {{"q_nope", q_nope},
                                              {"q_pe", q_pe},
                                              {"kv_cache", kv_cache},
                                              {"seq_lens", seq_lens},
                                              {"page_table", page_table}});

  const int64_t splits = needed == 0              ? 1
                         : num_kv_splits == kAuto ? auto_splits(longest, batch)
                                                  : num_kv_splits;
  Tensor out = new_tensor({batch, heads, Dl}, q_nope.dtype);
  kernels::mla_decode({.q_nope = q_nope,
                       .q_pe = q_pe,
                       .kv_cache = kv_cache,
                       .seq_lens = seq_lens,
                       .page_table = page_table,
                       .workspace = workspace,
                       .out = view_of("out", out),
                       .sm_scale = static_cast<float>(sm_scale),
                       .splits = splits,
                       .literal = num_kv_splits != kAuto,
                       .accurate = accurate});
  return out;
}

}  // namespace

KP_OPERATOR(
    mla_decode,
    "(Tensor q_nope, Tensor q_pe, Tensor kv_cache, Tensor seq_lens, Tensor page_table, Tensor(a!) workspace, "
    "float sm_scale, int num_kv_splits=-1, bool accurate=False) -> Tensor",
    "q_nope.new_empty(q_nope.shape)");
KP_OPERATOR_FOR(CompositeExplicitAutograd, _mla_auto_splits,
                "(int max_seq_len, int num_batches, int num_heads, int page_size) -> int");
KP_OPERATOR_FOR(CompositeExplicitAutograd, _mla_decode_workspace_size,
                "(int max_seq_len, int num_batches, int num_heads, int page_size, int latent_dim=512, "
                "int num_kv_splits=-1) -> int");

}  // namespace kernelpair
