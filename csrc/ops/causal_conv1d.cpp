// causal_conv1d: checks and registration of packing, whole sequences, single tokens and drafts. Contracts:
// docs/contracts/causal_conv1d.md, docs/contracts/causal_conv1d_update_spec.md.
#include "kernels/causal_conv1d.h"

#include <utility>

#include "core/operator.h"

namespace kernelpair {
namespace {

void check_dim_and_width(int64_t dim, int64_t width) {
  KP_CHECK_VALUE(dim >= 1, "dim must be >= 1, got ", dim);
  KP_CHECK_VALUE(width >= 2 && width <= 4, "width must be 2, 3 or 4, got ", width);
}

void check_packed(const View& packed, int64_t dim, int64_t width) {
  check_rank({"packed_weight", packed}, 4);
  check_float({"packed_weight", packed});
  check_shape({"packed_weight", packed}, {divide_up(dim, kConvBlock), divide_up(width, 2), kConvBlock, 2});
  int64_t dense = 1;
  for (int d = 3; d >= 0; --d) {
    KP_CHECK_VALUE(packed.sizes[d] == 1 || packed.strides[d] == dense, "packed_weight must be contiguous");
    dense *= packed.sizes[d];
  }
}

Tensor causal_conv1d_pack_weight(const Tensor& weight_in) {
  View weight = view_of("weight", weight_in);
  check_float({"weight", weight});
  KP_CHECK_VALUE(weight.dim == 2 || (weight.dim == 3 && weight.sizes[1] == 1),
                 "weight must have shape [dim, w] or [dim, 1, w], got ", shape_of(weight));
  weight.sizes[1] = weight.sizes[weight.dim - 1];
  weight.strides[1] = weight.strides[weight.dim - 1];
  weight.dim = 2;
  KP_CHECK_VALUE(weight.sizes[0] >= 1 && weight.sizes[1] >= 2 && weight.sizes[1] <= 4,
                 "weight must have dim >= 1 and width 2, 3 or 4, got ", shape_of(weight));
  Tensor packed = new_tensor(
      {divide_up(weight.sizes[0], kConvBlock), divide_up(weight.sizes[1], 2), kConvBlock, 2}, weight.dtype);
  kernels::causal_conv1d_pack({.weight = weight, .packed = view_of("packed", packed), .pack = true});
  return packed;
}

Tensor causal_conv1d_unpack_weight(const Tensor& packed_in, int64_t dim, int64_t width) {
  const View packed = view_of("packed_weight", packed_in);
  check_dim_and_width(dim, width);
  check_packed(packed, dim, width);
  Tensor weight = new_tensor({dim, width}, packed.dtype);
  kernels::causal_conv1d_pack({.weight = view_of("weight", weight), .packed = packed, .pack = false});
  return weight;
}

// What all forms share: dtypes, the weight, the bias, the layout of the state, of which drafts may take more
// columns than width - 1.
void check_common(const View& x, int64_t dim, const View& packed, int64_t width, const View& bias,
                  const View& conv_states, bool drafts = false) {
  check_float({"x", x});
  check_dim_and_width(dim, width);
  check_packed(packed, dim, width);
  if (conv_states.defined) check_rank({"conv_states", conv_states}, 3);
  check_same_dtype({"x", x}, {{"packed_weight", packed}, {"conv_states", conv_states}});
  if (bias.defined) check_parameter_vector({"bias", bias}, dim, x.dtype);
  if (!conv_states.defined) return;
  const int64_t columns = conv_states.sizes[2];
  check_shape({"conv_states", conv_states}, {conv_states.sizes[0], dim, columns});
  KP_CHECK_VALUE(drafts || columns >= width - 1, "conv_states needs at least ", width - 1, " columns, got ",
                 columns);
  const bool dense = element_count(conv_states) == 0 || dim == 1 || columns == 1 ||
                     conv_states.strides[1] == 1 || conv_states.strides[2] == 1;
  KP_CHECK_VALUE(dense, "conv_states needs stride 1 over dim or over columns, got ", conv_states.strides[1],
                 " and ", conv_states.strides[2]);
}

// The slots that are written: those of sequences with tokens, pads apart.
void check_slots(const View& conv_states, const View& cache_indices, const View& query_start_loc,
                 int64_t requests, int64_t tokens, Pad pad) {
  const int64_t slots = conv_states.sizes[0];
  if (!cache_indices.defined) {
    KP_CHECK_VALUE(requests <= slots, "conv_states has ", slots, " slots for ", requests,
                   " sequences without cache_indices");
    return;
  }
  check_index_dtype({"cache_indices", cache_indices});
  check_shape({"cache_indices", cache_indices}, {requests});
  check_written_slots({"cache_indices", cache_indices}, slots, pad, [&](int64_t b) {
    return query_start_loc.defined ? index_at(query_start_loc, b + 1) > index_at(query_start_loc, b)
                                   : tokens > 0;
  });
}

Tensor causal_conv1d_fwd(const Tensor& x_in, const Tensor& packed_in, int64_t width,
                         std::optional<Tensor> bias_in, std::optional<Tensor> conv_states_in,
                         std::optional<Tensor> query_start_loc_in, std::optional<Tensor> cache_indices_in,
                         std::optional<Tensor> has_initial_state_in, bool silu_activation,
                         std::optional<int64_t> pad_slot) {
  const View x = view_of("x", x_in), packed = view_of("packed_weight", packed_in),
             bias = view_of("bias", bias_in);
  const View conv_states = view_of("conv_states", conv_states_in);
  const View query_start_loc = view_of("query_start_loc", query_start_loc_in);
  const View cache_indices = view_of("cache_indices", cache_indices_in);
  const View has_initial_state = view_of("has_initial_state", has_initial_state_in);
  const bool varlen = query_start_loc.defined;
  KP_CHECK_VALUE(x.dim == (varlen ? 2 : 3), "x must have shape ",
                 varlen ? "[dim, T] with query_start_loc" : "[B, dim, L] without query_start_loc", ", got ",
                 shape_of(x));
  const int64_t dim = x.sizes[x.dim - 2], tokens = x.sizes[x.dim - 1];
  check_common(x, dim, packed, width, bias, conv_states);
  if (varlen) {
    check_index_dtype({"query_start_loc", query_start_loc});
    check_offsets({"query_start_loc", query_start_loc}, tokens);
  }
  const int64_t requests = varlen ? query_start_loc.sizes[0] - 1 : x.sizes[0];
  if (!conv_states.defined) {
    KP_CHECK_VALUE(!cache_indices.defined, "cache_indices needs conv_states");
    KP_CHECK_VALUE(!has_initial_state.defined, "has_initial_state needs conv_states");
  }
  if (has_initial_state.defined) {
    check_dtype({"has_initial_state", has_initial_state}, {Dtype::b8});
    check_shape({"has_initial_state", has_initial_state}, {requests});
  }
  const Pad pad{pad_slot.has_value(), pad_slot.value_or(0)};
  if (conv_states.defined) check_slots(conv_states, cache_indices, query_start_loc, requests, tokens, pad);
  check_disjoint({{"conv_states", conv_states}}, {{"x", x},
                                                  {"packed_weight", packed},
                                                  {"bias", bias},
                                                  {"query_start_loc", query_start_loc},
                                                  {"cache_indices", cache_indices},
                                                  {"has_initial_state", has_initial_state}});

  // The result is dense where x is: over channels, else over tokens.
  const bool dense_channels = x.strides[x.dim - 2] == 1;
  const auto new_result = [&](std::initializer_list<int64_t> sizes) {
    return dense_channels ? new_transposed(sizes, x.dtype) : new_tensor(sizes, x.dtype);
  };
  Tensor y = varlen ? new_result({dim, tokens}) : new_result({x.sizes[0], dim, tokens});
  kernels::causal_conv1d({.x = x,
                          .packed = packed,
                          .bias = bias,
                          .conv_states = conv_states,
                          .query_start_loc = query_start_loc,
                          .cache_indices = cache_indices,
                          .has_initial_state = has_initial_state,
                          .num_accepted_tokens = View{},
                          .y = view_of("y", y),
                          .width = width,
                          .silu = silu_activation,
                          .always_initial = false,
                          .has_pad = pad.given,
                          .pad_slot = pad.slot});
  return y;
}

// [B, dim] as [B, dim, 1].
View one_token(View view) {
  view.dim = 3;
  view.sizes[2] = 1;
  view.strides[2] = 1;
  return view;
}

Tensor causal_conv1d_update(const Tensor& x_in, const Tensor& conv_states_in, const Tensor& packed_in,
                            int64_t width, std::optional<Tensor> bias_in,
                            std::optional<Tensor> cache_indices_in, bool silu_activation,
                            std::optional<int64_t> pad_slot) {
  const View x = view_of("x", x_in), packed = view_of("packed_weight", packed_in),
             bias = view_of("bias", bias_in);
  const View conv_states = view_of("conv_states", conv_states_in);
  const View cache_indices = view_of("cache_indices", cache_indices_in);
  check_rank({"x", x}, 2);
  const int64_t requests = x.sizes[0], dim = x.sizes[1];
  check_common(x, dim, packed, width, bias, conv_states);
  const Pad pad{pad_slot.has_value(), pad_slot.value_or(0)};
  check_slots(conv_states, cache_indices, View{}, requests, 1, pad);
  check_disjoint({{"conv_states", conv_states}},
                 {{"x", x}, {"packed_weight", packed}, {"bias", bias}, {"cache_indices", cache_indices}});

  const bool dense_rows = x.strides[0] == 1 && x.strides[1] != 1;
  Tensor y = dense_rows ? new_transposed({requests, dim}, x.dtype) : new_tensor({requests, dim}, x.dtype);
  kernels::causal_conv1d({.x = one_token(x),
                          .packed = packed,
                          .bias = bias,
                          .conv_states = conv_states,
                          .query_start_loc = View{},
                          .cache_indices = cache_indices,
                          .has_initial_state = View{},
                          .num_accepted_tokens = View{},
                          .y = one_token(view_of("y", y)),
                          .width = width,
                          .silu = silu_activation,
                          .always_initial = true,
                          .has_pad = pad.given,
                          .pad_slot = pad.slot});
  return y;
}

// Each request with tokens reads w - 1 columns from num_accepted_tokens - 1 on and writes w - 2 and its tokens.
void check_accepted(const View& accepted, const View& conv_states, const View& query_start_loc,
                    const View& cache_indices, int64_t width, Pad pad) {
  const int64_t requests = cache_indices.sizes[0], columns = conv_states.sizes[2];
  check_index_dtype({"num_accepted_tokens", accepted});
  check_shape({"num_accepted_tokens", accepted}, {requests});
  for (int64_t b = 0; b < requests; ++b) {
    const int64_t tokens = index_at(query_start_loc, b + 1) - index_at(query_start_loc, b);
    if (tokens == 0 || (pad.given && index_at(cache_indices, b) == pad.slot)) continue;
    const int64_t count = index_at(accepted, b);
    KP_CHECK_VALUE(count >= 1 && count <= columns - width + 2, "num_accepted_tokens[", b, "] = ", count,
                   " is outside [1, ", columns - width + 2, "], for conv_states has ", columns, " columns");
    KP_CHECK_VALUE(tokens <= columns - width + 2, "conv_states has ", columns, " columns, request ", b,
                   " needs ", width - 2 + tokens);
  }
}

// [T, dim] as [dim, T].
View channels_first(View view) {
  std::swap(view.sizes[0], view.sizes[1]);
  std::swap(view.strides[0], view.strides[1]);
  return view;
}

Tensor causal_conv1d_update_spec(const Tensor& x_in, const Tensor& conv_states_in, const Tensor& packed_in,
                                 int64_t width, std::optional<Tensor> bias_in,
                                 const Tensor& query_start_loc_in, const Tensor& cache_indices_in,
                                 const Tensor& num_accepted_tokens_in, bool silu_activation,
                                 std::optional<int64_t> pad_slot) {
  const View x = view_of("x", x_in), packed = view_of("packed_weight", packed_in);
  const View bias = view_of("bias", bias_in), conv_states = view_of("conv_states", conv_states_in);
  const View query_start_loc = view_of("query_start_loc", query_start_loc_in);
  const View cache_indices = view_of("cache_indices", cache_indices_in);
  const View num_accepted_tokens = view_of("num_accepted_tokens", num_accepted_tokens_in);
  check_rank({"x", x}, 2);
  const int64_t tokens = x.sizes[0], dim = x.sizes[1];
  check_common(x, dim, packed, width, bias, conv_states, true);
  check_index_dtype({"query_start_loc", query_start_loc});
  check_offsets({"query_start_loc", query_start_loc}, tokens);
  const Pad pad{pad_slot.has_value(), pad_slot.value_or(0)};
  check_slots(conv_states, cache_indices, query_start_loc, query_start_loc.sizes[0] - 1, tokens, pad);
  check_accepted(num_accepted_tokens, conv_states, query_start_loc, cache_indices, width, pad);
  check_disjoint({{"conv_states", conv_states}}, {{"x", x},
                                                  {"packed_weight", packed},
                                                  {"bias", bias},
                                                  {"query_start_loc", query_start_loc},
                                                  {"cache_indices", cache_indices},
                                                  {"num_accepted_tokens", num_accepted_tokens}});
  // The result is dense over channels where x is, else over tokens.
  Tensor y = x.strides[1] == 1 ? new_tensor({tokens, dim}, x.dtype) : new_transposed({tokens, dim}, x.dtype);
  kernels::causal_conv1d({.x = channels_first(x),
                          .packed = packed,
                          .bias = bias,
                          .conv_states = conv_states,
                          .query_start_loc = query_start_loc,
                          .cache_indices = cache_indices,
                          .has_initial_state = View{},
                          .num_accepted_tokens = num_accepted_tokens,
                          .y = channels_first(view_of("y", y)),
                          .width = width,
                          .silu = silu_activation,
                          .always_initial = true,
                          .has_pad = pad.given,
                          .pad_slot = pad.slot});
  return y;
}

}  // namespace

KP_OPERATOR(causal_conv1d_pack_weight, "(Tensor weight) -> Tensor",
            "weight.new_empty((-(-weight.shape[0] // 32), -(-weight.shape[-1] // 2), 32, 2))");
KP_OPERATOR(causal_conv1d_unpack_weight, "(Tensor packed_weight, int dim, int width) -> Tensor",
            "packed_weight.new_empty((dim, width))");
KP_OPERATOR(causal_conv1d_fwd,
            "(Tensor x, Tensor packed_weight, int width, Tensor? bias, Tensor(a!)? conv_states, Tensor? "
            "query_start_loc, "
            "Tensor? cache_indices, Tensor? has_initial_state, bool silu_activation=True, int? "
            "pad_slot=None) -> Tensor",
            "x.new_empty(x.transpose(-1, -2).shape).transpose(-1, -2) if x.stride(-2) == 1 else "
            "x.new_empty(x.shape)");
KP_OPERATOR(causal_conv1d_update,
            "(Tensor x, Tensor(a!) conv_states, Tensor packed_weight, int width, Tensor? bias, Tensor? "
            "cache_indices, "
            "bool silu_activation=True, int? pad_slot=None) -> Tensor",
            "x.new_empty((x.shape[1], x.shape[0])).t() if x.stride(0) == 1 and x.stride(1) != 1 else "
            "x.new_empty(x.shape)");
KP_OPERATOR(
    causal_conv1d_update_spec,
    "(Tensor x, Tensor(a!) conv_states, Tensor packed_weight, int width, Tensor? bias, Tensor "
    "query_start_loc, Tensor cache_indices, Tensor num_accepted_tokens, bool silu_activation=True, int? "
    "pad_slot=None) -> Tensor",
    "x.new_empty(x.shape) if x.stride(1) == 1 else x.new_empty((x.shape[1], x.shape[0])).t()");

}  // namespace kernelpair
