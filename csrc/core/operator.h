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

#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "core/checks.h"
#include "core/integers.h"
#include "core/tensor.h"
#include "core/tier.h"

namespace kernelpair {

// An operator as torch calls it, and how many values it takes from the stack and leaves there.
struct BoxedOperator {
  void (*call)(StableIValue* stack);
  uint64_t inputs, outputs;
};

// Calls it and puts its name and error class in front of the message of a failed check.
void call_named(const char* name, BoxedOperator boxed, StableIValue* stack, uint64_t inputs,
                uint64_t outputs);

using TorchFunction = void (*)(StableIValue* stack, uint64_t inputs, uint64_t outputs);

// Registers an operator with torch for a dispatch key, and keeps its name, schema and fake for Python to ask.
struct OperatorRecord {
  const char *name, *schema, *fake;
  OperatorRecord(const char* key, TorchFunction function, const char* name, const char* schema,
                 const char* fake = "");
};

// Schema types arrive as int64_t, double, bool, std::string, ScalarType, Tensor, and optionals and lists of all but
// strings. The stable ABI would let a float or an int32_t through and hand over a wrong value, so such a signature does
// not compile.
template <class T>
struct IsOperatorType : std::bool_constant<std::is_same_v<T, Tensor> || std::is_same_v<T, int64_t> ||
                                           std::is_same_v<T, double> || std::is_same_v<T, bool> ||
                                           std::is_same_v<T, std::string> || std::is_same_v<T, ScalarType>> {
};
template <class T>
struct IsOperatorType<std::optional<T>>
    : std::bool_constant<IsOperatorType<T>::value && !std::is_same_v<T, std::string>> {};
template <class T>
struct IsOperatorType<std::vector<T>> : IsOperatorType<std::optional<T>> {};

// What torch hands over in a place of its stack, owned by the caller. torch's own `to` of a string, in 2.13, makes a
// string that it never frees.
template <class T>
T taken(StableIValue value) {
  return torch::stable::detail::to<T>(value);
}
template <>
std::string taken<std::string>(StableIValue value);
template <>
inline Tensor taken<Tensor>(StableIValue value) {
  return Tensor(taken<AtenTensorHandle>(value));
}
template <>
inline std::optional<Tensor> taken<std::optional<Tensor>>(StableIValue value) {
  const auto handle = taken<std::optional<AtenTensorHandle>>(value);
  return handle ? std::optional<Tensor>(std::in_place, *handle) : std::nullopt;
}

// What torch is given back, which owns it from then on.
template <class T>
StableIValue given(const T& value) {
  return torch::stable::detail::from(value);
}
inline StableIValue given(Tensor& value) { return given(value.release()); }

// What torch puts on its stack, given to a function, and what that returns, put there. TORCH_BOX does the same by way
// of tuples, which take the compiler a third of an operator's time.
template <class Result>
struct Returned {
  static constexpr uint64_t kCount = 1;
  static void put(StableIValue* stack, Result result) { *stack = given(result); }
};
template <>
struct Returned<void> {
  static constexpr uint64_t kCount = 0;
};
template <class... Results>
struct Returned<std::tuple<Results...>> {
  static constexpr uint64_t kCount = sizeof...(Results);
  static void put(StableIValue* stack, std::tuple<Results...> results) {
    std::apply([&](Results&... each) { ((*stack++ = given(each)), ...); }, results);
  }
};

template <auto function>
struct Boxed;
template <class Result, class... Args, Result (*function)(Args...)>
struct Boxed<function> {
  static_assert((IsOperatorType<std::remove_cvref_t<Args>>::value && ...),
                "operators take Tensor, int64_t, double, bool, std::string, ScalarType, and optionals "
                "and lists of all but strings");
  template <size_t... I>
  static void call_with(StableIValue* stack, std::index_sequence<I...>) {
    if constexpr (std::is_void_v<Result>)
      function(taken<std::remove_cvref_t<Args>>(stack[I])...);
    else
      Returned<Result>::put(stack, function(taken<std::remove_cvref_t<Args>>(stack[I])...));
  }
  static void call(StableIValue* stack) { call_with(stack, std::index_sequence_for<Args...>()); }
  static constexpr BoxedOperator kOperator{&call, sizeof...(Args), Returned<Result>::kCount};
};

}  // namespace kernelpair

#define KP_OPERATOR_FOR(key, name, schema, ...)                                                     \
  static void name##_boxed(StableIValue* stack, uint64_t inputs, uint64_t outputs) {                \
    ::kernelpair::call_named(#name, ::kernelpair::Boxed<&name>::kOperator, stack, inputs, outputs); \
  }                                                                                                 \
  static const ::kernelpair::OperatorRecord name##_record(#key, &name##_boxed, #name,               \
                                                          schema __VA_OPT__(, ) __VA_ARGS__);       \
  static_assert(true)

#define KP_OPERATOR(name, schema, ...) KP_OPERATOR_FOR(CPU, name, schema __VA_OPT__(, ) __VA_ARGS__)
