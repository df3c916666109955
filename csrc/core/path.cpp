#include "core/path.h"

#include <set>
#include <string>

#include "build_info.h"
#include "core/operator.h"

// The linker's names for the ends of the section; weak, for a library whose kernels mark nothing has none.
extern "C" __attribute__((weak, visibility("hidden"))) kernelpair::Path __start_kp_paths[];
extern "C" __attribute__((weak, visibility("hidden"))) kernelpair::Path __stop_kp_paths[];

namespace kernelpair {
namespace {

// The tier whose object of a source this tier runs.
std::string owner_of(const std::string& source, const std::string& tier) {
  struct Shared {
    const char *file, *tier, *owner;
  };
#define KP_ENTRY(stem, of_tier, owner) {"/" #stem ".cpp", #of_tier, #owner},
  static constexpr Shared kShared[] = {KP_SHARED(KP_ENTRY){"", "", ""}};
#undef KP_ENTRY
  for (const Shared& shared : kShared)
    if (tier == shared.tier && source.ends_with(shared.file)) return shared.owner;
  return tier;
}

template <class Wanted>
std::string names_of_paths(const Wanted& wanted) {
  std::set<std::string> names;  // a header's record stands in each kernel that includes it
  for (Path* path = __start_kp_paths; path != __stop_kp_paths; ++path)
    if (wanted(*path)) names.insert(path->name);
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ",") + name;
  return list;
}

// Names with commas between them: all that a tier has, or those taken since they were last asked for, which
// are forgotten.
std::string _paths(const std::string& tier) {
  return names_of_paths([&](const Path& path) { return owner_of(path.source, tier) == path.tier; });
}

std::string _taken_paths() {
  return names_of_paths([](Path& path) { return __atomic_exchange_n(&path.taken, false, __ATOMIC_RELAXED); });
}

}  // namespace

KP_OPERATOR_FOR(CompositeExplicitAutograd, _paths, "(str tier) -> str");
KP_OPERATOR_FOR(CompositeExplicitAutograd, _taken_paths, "() -> str");

}  // namespace kernelpair
