// Tiers: which builds of the kernels exist, which can run here, which one is selected, which one ran last.
#pragma once

#include <string>
#include <string_view>

#include "tiers.h"

namespace kernelpair {

#define KP_ENUMERATOR(name, products, flags, features) name,
enum class Tier : int { KP_TIERS(KP_ENUMERATOR) count };
#undef KP_ENUMERATOR
constexpr int kTierCount = static_cast<int>(Tier::count);

// What the time of a call goes to. It matters where no tier was asked for: what is best for products need not be for
// the rest.
enum class Work { products, other };
constexpr int kWorks = 2;

// That of a kernel, by the header that declares it.
constexpr Work work_of(std::string_view header) {
#define KP_IF_ITS(stem) \
  if (header.ends_with("/" #stem ".h")) return Work::products;
  KP_MULTIPLY(KP_IF_ITS)
#undef KP_IF_ITS
  return Work::other;
}

// The tier selected for such work, taken from KERNELPAIR_TIER or the best of this CPU at the first call; recorded as
// the last one that ran.
Tier begin_kernel(Work work);

const char* name_of(Tier tier);
Tier selected_tier(Work work = Work::products);
// "" is as at the start; ValueError for a tier that is unknown or cannot run here.
void select_tier(const std::string& name);
std::string asked_tier();  // the last one so selected
void allow_stand_ins();  // tiers may run whose instructions others carry out: csrc/trap, or csrc/simd/emulated.h
std::string last_tier();  // empty if no kernel ran since the last forget_last_tier()
void forget_last_tier();
std::string describe_tiers();  // JSON for the Python face

}  // namespace kernelpair
