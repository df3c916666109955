#include "core/operator.h"

#include <map>
#include <vector>

namespace kernelpair {
namespace {

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
void _allow_stand_ins() { allow_stand_ins(); }

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
KP_OPERATOR_FOR(CompositeExplicitAutograd, _allow_stand_ins, "() -> ()");
KP_OPERATOR_FOR(CompositeExplicitAutograd, _selected_tier, "(bool products=True) -> str");
KP_OPERATOR_FOR(CompositeExplicitAutograd, _asked_tier, "() -> str");
KP_OPERATOR_FOR(CompositeExplicitAutograd, _last_tier, "() -> str");
KP_OPERATOR_FOR(CompositeExplicitAutograd, _forget_last_tier, "() -> ()");

}  // namespace kernelpair
