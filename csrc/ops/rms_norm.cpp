// rms_norm, rms_norm_in_place: checks and registration. Contract: docs/contracts/rms_norm.md.
#include "kernels/rms_norm.h"

#include <algorithm>
#include <cstring>

#include "core/operator.h"

namespace kernelpair {
namespace {

void check_like(Arg other, Arg x) {
  if (!other.view.defined) return;
  const bool same =
      other.view.dim == x.view.dim && std::equal(x.view.sizes, x.view.sizes + x.view.dim, other.view.sizes);
  KP_CHECK_VALUE(same, other.name, " must have the shape of ", x.name, ", ", shape_of(x.view), ", got ",
                 shape_of(other.view));
  check_dense_last_dim(other);
}

// The vector with its elements side by side: a copy, which `kept` owns, where they are not.
View dense(const View& vector, Tensor& kept) {
  if (!vector.defined || vector.sizes[0] <= 1 || vector.strides[0] == 1) return vector;
  kept = new_tensor({vector.sizes[0]}, vector.dtype);
  const View copy = view_of("", kept);
  const int64_t width = element_size(vector.dtype);
  for (int64_t i = 0; i < vector.sizes[0]; ++i) std::memcpy(at(copy, i), at(vector, i), width);
  return copy;
}

int64_t checked_group(std::optional<int64_t> group_size, int64_t D) {
  if (!group_size) return std::max<int64_t>(D, 1);
  KP_CHECK_VALUE(*group_size >= 1, "group_size must be at least 1, got ", *group_size);
  KP_CHECK_VALUE(D % *group_size == 0, "group_size = ", *group_size, " does not divide the ", D,
                 " columns of x");
  return *group_size;
}

// The result, which is x itself and not returned in place.
Tensor normalise(bool in_place, const Tensor& x_in, const std::optional<Tensor>& weight_in, double eps,
                 const std::optional<Tensor>& residual_in, const std::optional<Tensor>& gate_in,
                 std::optional<int64_t> group_size, bool gemma) {
  const View x = view_of("x", x_in), weight = view_of("weight", weight_in);
  const View residual = view_of("residual", residual_in), gate = view_of("gate", gate_in);
  KP_CHECK_VALUE(x.dim >= 1 && x.dim <= kMostRowDims, "x must have 1 to 4 dimensions, got shape ",
                 shape_of(x));
  check_float({"x", x});
  check_dense_last_dim({"x", x});
  const int64_t D = x.sizes[x.dim - 1];
  check_like({"residual", residual}, {"x", x});
  check_like({"gate", gate}, {"x", x});
  check_same_dtype({"x", x}, {{"residual", residual}, {"gate", gate}});
  KP_CHECK_VALUE(!residual.defined || !gate.defined, "residual and gate cannot both be given");
  if (weight.defined) check_parameter_vector({"weight", weight}, D, x.dtype);
  KP_CHECK_VALUE(weight.defined || !gemma, "gemma needs a weight, to which it adds 1");
  check_positive("eps", eps);
  const int64_t group = checked_group(group_size, D);
  if (in_place)
    check_disjoint({{"x", x}, {"residual", residual}}, {{"gate", gate}, {"weight", weight}});
  else
    check_disjoint({{"residual", residual}}, {{"x", x}, {"weight", weight}});
  Tensor out, kept;
  if (!in_place) out = new_tensor(x.sizes, x.dim, x.dtype);
  const View x_rows = rows_of(x), out_rows = in_place ? x_rows : rows_of(view_of("out", out));
  const View residual_rows = residual.defined ? rows_of(residual) : residual;
  const View gate_rows = gate.defined ? rows_of(gate) : gate;
  kernels::rms_norm({.x = x_rows,
                     .residual = residual_rows,
                     .gate = gate_rows,
                     .weight = dense(weight, kept),
                     .out = out_rows,
                     .group = group,
                     .eps = static_cast<float>(eps),
                     .gemma = gemma});
  return out;
}

Tensor rms_norm(const Tensor& x, const std::optional<Tensor>& weight, double eps,
                const std::optional<Tensor>& residual, const std::optional<Tensor>& gate,
                std::optional<int64_t> group_size, bool gemma) {
  return normalise(false, x, weight, eps, residual, gate, group_size, gemma);
}

void rms_norm_in_place(const Tensor& x, const std::optional<Tensor>& weight, double eps,
                       const std::optional<Tensor>& residual, const std::optional<Tensor>& gate,
                       std::optional<int64_t> group_size, bool gemma) {
  normalise(true, x, weight, eps, residual, gate, group_size, gemma);
}

}  // namespace

KP_OPERATOR(rms_norm,
            "(Tensor x, Tensor? weight, float eps=1e-6, Tensor(a!)? residual=None, Tensor? gate=None, int? "
            "group_size=None, bool gemma=False) -> Tensor",
            "x.new_empty(x.shape)");
KP_OPERATOR(
    rms_norm_in_place,
    "(Tensor(a!) x, Tensor? weight, float eps=1e-6, Tensor(b!)? residual=None, Tensor? gate=None, int? "
    "group_size=None, bool gemma=False) -> ()");

}  // namespace kernelpair
