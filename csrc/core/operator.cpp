#include "core/operator.h"

#include <map>
#include <vector>

#include "core/weight_memory.h"

namespace kernelpair {
namespace {

Dtype dtype_of(const char* name, ScalarType type) {
  switch (type) {
    case ScalarType::BFloat16: return Dtype::bf16;
    case ScalarType::Half: return Dtype::f16;
    case ScalarType::Float: return Dtype::f32;
    case ScalarType::Byte: return Dtype::u8;
    case ScalarType::Char: return Dtype::i8;
    case ScalarType::Float8_e4m3fn: return Dtype::f8e4m3;
    case ScalarType::Float8_e5m2: return Dtype::f8e5m2;
    case ScalarType::Int: return Dtype::i32;
    case ScalarType::Long: return Dtype::i64;
    case ScalarType::Bool: return Dtype::b8;
    default: fail(ErrorKind::type, {name, " has dtype ", torch::headeronly::toString(type)});
  }
}

ScalarType scalar_type_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::bf16: return ScalarType::BFloat16;
    case Dtype::f16: return ScalarType::Half;
    case Dtype::f32: return ScalarType::Float;
    case Dtype::u8: return ScalarType::Byte;
    case Dtype::i8: return ScalarType::Char;
    case Dtype::f8e4m3: return ScalarType::Float8_e4m3fn;
    case Dtype::f8e5m2: return ScalarType::Float8_e5m2;
    case Dtype::i32: return ScalarType::Int;
    case Dtype::i64: return ScalarType::Long;
    case Dtype::b8: return ScalarType::Bool;
  }
  return ScalarType::Undefined;
}

// The strides of a contiguous tensor; 0 counts as 1 where its size is multiplied.
struct Dense {
  std::vector<int64_t> strides;
  int64_t elements = 1;
  bool overflows = false;

  Dense(const int64_t* sizes, size_t dim) : strides(dim) {
    for (size_t d = dim; d-- > 0;) {
      strides[d] = elements;
      overflows |= __builtin_mul_overflow(elements, sizes[d] ? sizes[d] : 1, &elements);
    }
  }
};

std::vector<OperatorRecord>& operators() {
  static auto* const all = new std::vector<OperatorRecord>;
  return *all;
}

const char* marker(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::type: return "TypeError";
    case ErrorKind::index: return "IndexError";
    default: return "ValueError";
  }
}

}  // namespace

template <>
std::string taken<std::string>(StableIValue value) {
  const auto handle = torch::stable::detail::to<StringHandle>(value);
  size_t length;
  const char* data;
  STABLE_TORCH_ERROR_CODE_CHECK(torch_string_length(handle, &length));
  STABLE_TORCH_ERROR_CODE_CHECK(torch_string_c_str(handle, &data));
  std::string text(data, length);
  STABLE_TORCH_ERROR_CODE_CHECK(torch_delete_string(handle));
  return text;
}

View view_of(const char* name, const Tensor& tensor) {
  View view;
  view.dtype = dtype_of(name, tensor.scalar_type());
  const auto sizes = tensor.sizes();
  KP_CHECK_VALUE(sizes.size() <= kMaxRank, name, " has ", sizes.size(), " dimensions, at most ", kMaxRank,
                 " are known");
  KP_CHECK_VALUE(tensor.is_cpu(), name, " is not on the CPU");
  view.dim = static_cast<int32_t>(sizes.size());
  const auto strides = tensor.strides();
  for (int d = 0; d < view.dim; ++d) {
    view.sizes[d] = sizes[d];
    view.strides[d] = strides[d];
  }
  view.data = tensor.data_ptr();
  view.defined = true;
  return view;
}

Dtype float_dtype_of(const char* name, ScalarType type) {
  const Dtype dtype = dtype_of(name, type);
  const bool is_float = dtype == Dtype::bf16 || dtype == Dtype::f16 || dtype == Dtype::f32;
  KP_CHECK_TYPE(is_float, name, " must be bfloat16, float16 or float32, got ", name_of(dtype));
  return dtype;
}

View view_of(const char* name, const std::optional<Tensor>& tensor) {
  return tensor.has_value() ? view_of(name, *tensor) : View{};
}

// Not torch::stable::empty, which looks its operator up by name at each call: 0.7 us of a small one.
Tensor new_tensor(const int64_t* sizes, size_t dim, Dtype dtype) {
  const Dense dense(sizes, dim);  // packed_linear's result has any rank
  if (dense.overflows) return torch::stable::empty({sizes, dim}, scalar_type_of(dtype));  // which says so
  AtenTensorHandle handle;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(
      static_cast<int64_t>(dim), sizes, dense.strides.data(), static_cast<int32_t>(scalar_type_of(dtype)),
      aoti_torch_device_type_cpu(), 0, &handle));
  return Tensor(handle);
}

Tensor new_tensor(std::initializer_list<int64_t> sizes, Dtype dtype) {
  return new_tensor(sizes.begin(), sizes.size(), dtype);
}

Tensor new_weight(const int64_t* sizes, size_t dim, Dtype dtype) {
  const Dense dense(sizes, dim);
  size_t bytes;
  if (dense.overflows || __builtin_mul_overflow(dense.elements, element_size(dtype), &bytes) ||
      bytes < kHugePage)
    return new_tensor(sizes, dim, dtype);
  void* const data = map_weight(bytes);
  if (!data) return new_tensor(sizes, dim, dtype);  // whose error says how much
  return torch::stable::from_blob(data, {sizes, dim}, {dense.strides.data(), dim},
                                  torch::stable::Device(torch::headeronly::DeviceType::CPU),
                                  scalar_type_of(dtype),
                                  [bytes](void* freed) { unmap_weight(freed, bytes); });
}

void call_named(const char* name, BoxedOperator boxed, StableIValue* stack, uint64_t inputs,
                uint64_t outputs) {
  if (inputs != boxed.inputs || outputs != boxed.outputs)
    throw std::logic_error(concat({name, " is registered with ", inputs, " arguments and ", outputs,
                                   " results, and its function has ", boxed.inputs, " and ", boxed.outputs}));
  try {
    boxed.call(stack);
  } catch (const ArgumentError& error) {
    const bool internal = name[0] == '_';
    throw std::runtime_error(
        concat({marker(error.kind), ": ", internal ? "" : name, internal ? "" : ": ", error.what()}));
  }
}

// Not the macros of torch: they would be compiled anew for each operator.
OperatorRecord::OperatorRecord(const char* key, TorchFunction function, const char* op_name,
                               const char* op_schema, const char* op_fake)
    : name(op_name), schema(op_schema), fake(op_fake) {
  using torch::stable::detail::StableLibrary;
  static StableLibrary definitions(StableLibrary::Kind::FRAGMENT, "kernelpair", nullptr, __FILE__, __LINE__);
  static std::map<std::string, StableLibrary> implementations;
  definitions.def(concat({name, schema}).c_str(), {at::Tag::pt2_compliant_tag});
  implementations.try_emplace(key, StableLibrary::Kind::IMPL, "kernelpair", key, __FILE__, __LINE__)
      .first->second.impl(name, function);
  operators().push_back(*this);
}

// The operators of the library itself. They take no tensor, so they are registered for every backend at once.
namespace {

std::string _tiers() { return describe_tiers(); }

std::string _operators() {
  std::string list;
  for (const OperatorRecord& op : operators())
    if (op.name[0] != '_' || op.fake[0] != '\0')
      list += concat({list.empty() ? "" : ", ", "{\"name\": ", json_string(op.name),
                      ", \"schema\": ", json_string(op.schema), ", \"fake\": ", json_string(op.fake), "}"});
  return "[" + list + "]";
}

void _set_tier(const std::string& name) { select_tier(name); }
void _allow_trapped_tiles() { allow_trapped_tiles(); }

std::string _selected_tier(bool products) {
  return name_of(selected_tier(products ? Work::products : Work::other));
}

std::string _asked_tier() { return asked_tier(); }

std::string _last_tier() { return last_tier(); }

void _forget_last_tier() { forget_last_tier(); }

}  // namespace

KP_OPERATOR_FOR(CompositeExplicitAutograd, _tiers, "() -> str");
KP_OPERATOR_FOR(CompositeExplicitAutograd, _operators, "() -> str");
KP_OPERATOR_FOR(CompositeExplicitAutograd, _set_tier, "(str name) -> ()");
KP_OPERATOR_FOR(CompositeExplicitAutograd, _allow_trapped_tiles, "() -> ()");
KP_OPERATOR_FOR(CompositeExplicitAutograd, _selected_tier, "(bool products=True) -> str");
KP_OPERATOR_FOR(CompositeExplicitAutograd, _asked_tier, "() -> str");
KP_OPERATOR_FOR(CompositeExplicitAutograd, _last_tier, "() -> str");
KP_OPERATOR_FOR(CompositeExplicitAutograd, _forget_last_tier, "() -> ()");

}  // namespace kernelpair
