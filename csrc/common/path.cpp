#include "common/path.h"

#include <string>

#include "common/operator.h"

namespace kernelpair {

std::atomic<bool> paths_taken[static_cast<int>(Path::count)];

namespace {

constexpr const char* kNames[] = {
#define KP_PATH_NAME(name) #name,
    KP_PATHS(KP_PATH_NAME)
#undef KP_PATH_NAME
};

// Names with commas between them: all, or those taken since the last call, which are forgotten.
std::string _paths(bool taken_only) {
  std::string names;
  for (int i = 0; i < static_cast<int>(Path::count); ++i) {
    if (taken_only && !paths_taken[i].exchange(false)) continue;
    if (!names.empty()) names += ',';
    names += kNames[i];
  }
  return names;
}

}  // namespace

KP_OPERATOR_FOR(CompositeExplicitAutograd, _paths, "(bool taken_only) -> str");

}  // namespace kernelpair
