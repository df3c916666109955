// store_cache: checks and registration. Contract: docs/contracts/store_cache.md.
#include "kernels/store_cache.h"
#include "core/operator.h"

namespace kernelpair {
namespace {

void store_cache(const Tensor& k_in, const Tensor& v_in, const Tensor& k_cache_in, const Tensor& v_cache_in,
                 const Tensor& indices_in, std::optional<int64_t> pad_slot) {
  const View k = view_of("k", k_in), v = view_of("v", v_in), indices = view_of("indices", indices_in);
  const View k_cache = view_of("k_cache", k_cache_in), v_cache = view_of("v_cache", v_cache_in);
  check_dense(3, {{"k", k}, {"v", v}, {"k_cache", k_cache}, {"v_cache", v_cache}});
  check_dtype({"k", k}, {Dtype::bf16, Dtype::f16, Dtype::f32, Dtype::u8, Dtype::f8e4m3, Dtype::f8e5m2});
  check_same_dtype({"k", k}, {{"v", v}, {"k_cache", k_cache}, {"v_cache", v_cache}});
  const int64_t tokens = k.sizes[0], heads = k.sizes[1], slots = v_cache.sizes[0];
  check_shape({"v", v}, {tokens, heads, v.sizes[2]});
  check_shape({"k_cache", k_cache}, {slots, heads, k.sizes[2]});
  check_shape({"v_cache", v_cache}, {slots, heads, v.sizes[2]});
  check_index_dtype({"indices", indices});
  check_shape({"indices", indices}, {tokens});
  const Pad pad{pad_slot.has_value(), pad_slot.value_or(0)};
  check_indices_in_range({"indices", indices}, slots, pad);
  check_no_duplicates({"indices", indices}, pad);
  check_disjoint({{"k_cache", k_cache}, {"v_cache", v_cache}}, {{"k", k}, {"v", v}, {"indices", indices}});
  kernels::store_cache({.k = k,
                        .v = v,
                        .k_cache = k_cache,
                        .v_cache = v_cache,
                        .indices = indices,
                        .has_pad = pad.given,
                        .pad_slot = pad.slot});
}

}  // namespace

KP_OPERATOR(
    store_cache,
    "(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor indices, int? pad_slot=None) -> ()");

}  // namespace kernelpair
