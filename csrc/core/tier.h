// Tiers: which builds of the kernels exist, which can run here, which one is selected, which one ran last.
#pragma once

#include <string>

#include "tiers.h"

namespace kernelpair {

#define KP_ENUMERATOR(name, products, flags, features) name,
enum class Tier : int { KP_TIERS(KP_ENUMERATOR) count };
#undef KP_ENUMERATOR
constexpr int kTierCount = static_cast<int>(Tier::count);

// The selected tier, taken from KERNELPAIR_TIER or the best of this CPU at the first call; recorded as the
// last one that ran.
Tier begin_kernel();

const char* name_of(Tier tier);
Tier selected_tier();
void select_tier(const std::string& name);  // ValueError for a tier that is unknown or cannot run here
void allow_trapped_tiles();  // the tile instructions of this process are carried out by csrc/trap
std::string last_tier();     // empty if no kernel ran since the last forget_last_tier()
void forget_last_tier();
std::string describe_tiers();  // JSON for the Python face

}  // namespace kernelpair
