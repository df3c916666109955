// Operator registration on the LibTorch stable ABI. Included by csrc/ops only; kernels know no torch.
//
//   namespace kernelpair {
//   namespace { void store_cache(const Tensor& k, ..., std::optional<int64_t> pad_slot) { ... } }
//   KP_OPERATOR(store_cache, "(Tensor k, ..., int? pad_slot=None) -> ()");
//   KP_OPERATOR(packed_linear, "(Tensor x, ...) -> Tensor", "x.new_empty((*x.shape[:-1], N))");
//   }
//
// The third argument is the fake (meta) implementation of a functional operator: a Python expression over the
// schema's argument names (and `torch`), evaluated by optimized/library.py. An operator that returns nothing
// needs none.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <type_traits>

#include "core/checks.h"
#include "core/integers.h"
#include "core/tier.h"
#include "core/view.h"

namespace kernelpair {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

View view_of(const char* name, const Tensor& tensor);  // TypeError for a dtype that no kernel knows
View view_of(const char* name, const std::optional<Tensor>& tensor);

// Fresh, uninitialised, contiguous, on the CPU.
Tensor new_tensor(std::initializer_list<int64_t> sizes, Dtype dtype);
Tensor new_tensor(const int64_t* sizes, size_t dim, Dtype dtype);
Tensor new_weight(const int64_t* sizes, size_t dim, Dtype dtype);  // in weight_memory.h's, if it is large
Dtype float_dtype_of(const char* name, ScalarType type);           // TypeError unless it is bf16, f16 or f32

using BoxedFunction = void (*)(StableIValue*, uint64_t, uint64_t);

// Calls a boxed operator and puts its name and error class in front of the message of a failed check.
void call_named(const char* name, BoxedFunction boxed, StableIValue* stack, uint64_t inputs,
                uint64_t outputs);

// What Python asks for: every operator's name, schema and fake.
struct OperatorRecord {
  OperatorRecord(const char* name, const char* schema, const char* fake = "");
};

// Schema types arrive as int64_t, double, bool, std::string, ScalarType, Tensor and optionals of them. The stable ABI
// would let a float or an int32_t through and hand over a wrong value, so such a signature does not compile.
template <class T>
struct IsOperatorType : std::bool_constant<std::is_same_v<T, Tensor> || std::is_same_v<T, int64_t> ||
                                           std::is_same_v<T, double> || std::is_same_v<T, bool> ||
                                           std::is_same_v<T, std::string> || std::is_same_v<T, ScalarType>> {
};
template <class T>
struct IsOperatorType<std::optional<T>> : IsOperatorType<T> {};
template <class T>
struct IsOperatorType<std::vector<T>> : IsOperatorType<T> {};

template <class Function>
struct HasOperatorSignature;
template <class Result, class... Args>
struct HasOperatorSignature<Result(Args...)>
    : std::bool_constant<(IsOperatorType<std::remove_cv_t<std::remove_reference_t<Args>>>::value && ...)> {};

}  // namespace kernelpair

#define KP_OPERATOR_FOR(key, name, schema, ...)                                                           \
  static_assert(::kernelpair::HasOperatorSignature<decltype(name)>::value, #name                          \
                ": operators take Tensor, int64_t, double, bool, std::string, ScalarType and optionals"); \
  static void name##_boxed(StableIValue* stack, uint64_t inputs, uint64_t outputs) {                      \
    ::kernelpair::call_named(#name, TORCH_BOX(&name), stack, inputs, outputs);                            \
  }                                                                                                       \
  static const ::kernelpair::OperatorRecord name##_record(#name, schema __VA_OPT__(, ) __VA_ARGS__);      \
  STABLE_TORCH_LIBRARY_FRAGMENT(kernelpair, library) {                                                    \
    library.def(#name schema, {at::Tag::pt2_compliant_tag});                                              \
  }                                                                                                       \
  STABLE_TORCH_LIBRARY_IMPL(kernelpair, key, library) { library.impl(#name, &name##_boxed); }             \
  static_assert(true)

#define KP_OPERATOR(name, schema, ...) KP_OPERATOR_FOR(CPU, name, schema __VA_OPT__(, ) __VA_ARGS__)
