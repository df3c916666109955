// rotary_embedding: checks and registration. Contract: docs/contracts/rotary_embedding.md.
#include "kernels/rotary_embedding.h"

#include <string>
#include <vector>

#include "core/operator.h"

namespace kernelpair {
namespace {

using Section = std::optional<std::vector<int64_t>>;

int64_t check_cache(const View& cache, const View& query) {
  check_rank({"cos_sin_cache", cache}, 2);
  check_dtype({"cos_sin_cache", cache}, {query.dtype, Dtype::f32});
  check_dense_last_dim({"cos_sin_cache", cache});
  const int64_t R = cache.sizes[1], D = query.sizes[2];
  KP_CHECK_VALUE(R >= 2 && R % 2 == 0 && R <= D,
                 "cos_sin_cache must have an even number of columns from 2 to ", D,
                 ", the width of query, got ", R);
  return R;
}

void check_section(const Section& section, int64_t R) {
  if (!section) return;
  KP_CHECK_VALUE(section->size() == 3, "mrope_section must have three entries, got ", section->size());
  int64_t rest = R / 2;
  for (int64_t pairs : *section) {
    KP_CHECK_VALUE(pairs >= 0 && pairs <= rest, "mrope_section must have entries of 0 or more with the sum ",
                   R / 2, ", half the columns of cos_sin_cache");
    rest -= pairs;
  }
  KP_CHECK_VALUE(rest == 0, "mrope_section must have the sum ", R / 2,
                 ", half the columns of cos_sin_cache, got ", R / 2 - rest);
}

// As [axes, T], every entry checked.
View check_positions(const View& given, bool axes, int64_t T, int64_t P) {
  const Arg positions{"positions", given};
  check_index_dtype(positions);
  check_rank(positions, axes ? 2 : 1);
  axes ? check_shape(positions, {3, T}) : check_shape(positions, {T});
  View view = given;
  if (!axes) {
    view.dim = 2;
    view.sizes[0] = 1, view.strides[0] = 0;
    view.sizes[1] = T, view.strides[1] = given.strides[0];
  }
  for (int64_t a = 0; a < view.sizes[0]; ++a)
    for (int64_t t = 0; t < T; ++t) {
      const int64_t p = index_at(view, a, t);
      KP_CHECK_INDEX(p >= 0 && p < P, "positions[", axes ? std::to_string(a) + ", " : std::string(), t,
                     "] = ", p, " is outside [0, ", P, ")");
    }
  return view;
}

void rotary_embedding(const Tensor& positions_in, const Tensor& query_in, const std::optional<Tensor>& key_in,
                      const Tensor& cache_in, bool is_neox, Section mrope_section, bool mrope_interleaved) {
  const View positions = view_of("positions", positions_in), query = view_of("query", query_in);
  const View key = view_of("key", key_in), cache = view_of("cos_sin_cache", cache_in);
  check_rank({"query", query}, 3);
  check_float({"query", query});
  check_dense_last_dim({"query", query});
  const int64_t T = query.sizes[0], D = query.sizes[2];
  if (key.defined) {
    check_rank({"key", key}, 3);
    check_same_dtype({"query", query}, {{"key", key}});
    check_shape({"key", key}, {T, key.sizes[1], D});
    check_dense_last_dim({"key", key});
  }
  const int64_t R = check_cache(cache, query);
  check_section(mrope_section, R);
  const View by_axis = check_positions(positions, mrope_section.has_value(), T, cache.sizes[0]);
  check_disjoint({{"query", query}, {"key", key}}, {{"cos_sin_cache", cache}, {"positions", positions}});
  const std::vector<int64_t> section = mrope_section.value_or(std::vector<int64_t>{0, 0, 0});
  kernels::rotary_embedding({.positions = by_axis,
                             .query = query,
                             .key = key,
                             .cache = cache,
                             .is_neox = is_neox,
                             .interleaved = mrope_interleaved,
                             .section = {section[0], section[1], section[2]}});
}

}  // namespace

KP_OPERATOR(
    rotary_embedding,
    "(Tensor positions, Tensor(a!) query, Tensor(b!)? key, Tensor cos_sin_cache, bool is_neox=True, int[]? "
    "mrope_section=None, bool mrope_interleaved=False) -> ()");

}  // namespace kernelpair
