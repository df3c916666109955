#include "core/tier.h"

#include <atomic>
#include <cstdlib>

#include "build_info.h"
#include "core/checks.h"
#include "core/dot_rate.h"

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace kernelpair {

// Whether this library has the tier's kernels; defined among them (shared_kernels.cpp.in).
#define KP_DECLARE(name, products, flags, features) \
  namespace name {                                  \
  extern const bool compiled;                       \
  }
KP_TIERS(KP_DECLARE)
#undef KP_DECLARE

namespace {

// How a tier multiplies bf16: like other numbers; two products at a time (VDPBF16PS); in tiles, of hardware
// or of software.
enum class Products { none, dots, tile_registers, soft_tiles };

struct TierInfo {
  const char* name;
  const bool& compiled;
  Products products;
  const char* products_name;
  const char* flags;
};

#define KP_INFO(name, products, flags, features) \
  {#name, ::kernelpair::name::compiled, Products::products, #products, flags},
constexpr TierInfo kTiers[] = {KP_TIERS(KP_INFO)};
#undef KP_INFO

const TierInfo& info(Tier tier) { return kTiers[static_cast<int>(tier)]; }

// The kernel grants the tile registers to a process only on request; the grant survives fork, not exec.
bool tile_permission() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr int kArchRequestXcompPermission = 0x1023, kXfeatureTileData = 18;
  return syscall(SYS_arch_prctl, kArchRequestXcompPermission, kXfeatureTileData) == 0;
#else
  return false;
#endif
}

// Whether instructions of this name are carried out by others in this library, whatever the CPU has (simd/emulated.h).
bool is_emulated(std::string_view feature) { return KERNELPAIR_EMULATED && feature.starts_with("avx512"); }

// Whether csrc/trap can carry them out, one by one.
bool is_trapped(std::string_view feature) { return feature.starts_with("amx-"); }

bool never(std::string_view) { return false; }

// What the tier has, and this CPU has not or this library does not use: "avx512f, avx512bw". Features that are `lent` are
// left out.
std::string lacking(Tier tier, bool (*lent)(std::string_view) = never) {
  std::string names;
  switch (tier) {
#define KP_FEATURE(feature)                                                         \
  if (!lent(feature) && (is_emulated(feature) || !__builtin_cpu_supports(feature))) \
    names += (names.empty() ? "" : ", ") + std::string(feature);
#define KP_CASE(name, products, flags, features) \
  case Tier::name: features break;
    KP_TIERS(KP_CASE)
#undef KP_CASE
#undef KP_FEATURE
    case Tier::count: break;
  }
  return names;
}

// How a tier runs here all the same, if nothing is lacking but what others carry out; else empty.
std::string run_as(Tier tier) {
  const auto lent = [](std::string_view feature) { return is_emulated(feature) || is_trapped(feature); };
  if (!info(tier).compiled || lacking(tier).empty() || !lacking(tier, lent).empty()) return "";
  if (lacking(tier, is_trapped).empty()) return "trapped";
  return lacking(tier, is_emulated).empty() ? "emulated" : "emulated, trapped";
}

std::string find_obstacle(Tier tier) {
  if (!info(tier).compiled) return "not compiled into this library";
  if (const std::string of_cpu = lacking(tier, is_emulated); !of_cpu.empty())
    return "this CPU lacks " + of_cpu;
  if (const std::string rest = lacking(tier); !rest.empty()) return "this library does without " + rest;
  if (info(tier).products == Products::tile_registers && !tile_permission())
    return "the operating system refuses the AMX tile registers";
  return "";
}

// Empty if the tier can run here, else why not. Asked once a tier: the answer does not change while a process
// lives.
const std::string& obstacle(Tier tier) {
  static const auto* const obstacles = [] {
    auto* all = new std::string[kTierCount];
    for (int i = 0; i < kTierCount; ++i) all[i] = find_obstacle(static_cast<Tier>(i));
    return all;
  }();
  return obstacles[static_cast<int>(tier)];
}

// Set where tiers may run whose instructions others carry out: such a tier then runs if it is named, and is never chosen.
std::atomic<bool> stand_ins_allowed{false};

bool may_run(Tier tier) {
  return obstacle(tier).empty() ||
         (stand_ins_allowed.load(std::memory_order_relaxed) && !run_as(tier).empty());
}

std::string names_of_tiers() {
  std::string names;
  for (const TierInfo& tier : kTiers) names += (names.empty() ? "" : ", ") + std::string(tier.name);
  return names;
}

Tier tier_named(const std::string& name, const char* source) {
  for (int i = 0; i < kTierCount; ++i) {
    if (name != kTiers[i].name) continue;
    const Tier tier = static_cast<Tier>(i);
    KP_CHECK_VALUE(may_run(tier), source, "tier '", name, "' cannot run here: ", obstacle(tier));
    return tier;
  }
  fail(ErrorKind::value, {source, "there is no tier '", name, "'; the tiers are ", names_of_tiers()});
}

// Whether a tier that can run is faster than the one before it. For products, dots are where VDPBF16PS does more of them
// in a time than FMA, which not every CPU's does; tiles in software run only when asked for.
bool pays(Tier tier, Work work) {
  const Products products = info(tier).products;
  return products != Products::soft_tiles &&
         (products != Products::dots || work == Work::other || dot_rate() > 1);
}

// The last of the list, which goes from what any CPU has to what few have. The first runs everywhere, where
// it is compiled.
Tier best_tier(Work work) {
  int best = kTierCount - 1;
  while (best > 0 && !(obstacle(static_cast<Tier>(best)).empty() && pays(static_cast<Tier>(best), work)))
    --best;
  return static_cast<Tier>(best);
}

constexpr int kNone = -1;
std::atomic<int> selected[kWorks] = {kNone, kNone};
std::atomic<int> asked{kNone};
std::atomic<int> last{kNone};

std::string name_if_any(int tier) { return tier == kNone ? "" : kTiers[tier].name; }

Tier initial_tier(Work work) {
  const char* forced = std::getenv("KERNELPAIR_TIER");
  if (forced && *forced) return tier_named(forced, "KERNELPAIR_TIER: ");
  const Tier best = best_tier(work);
  KP_CHECK_VALUE(obstacle(best).empty(), "no tier of this library runs here unasked: set KERNELPAIR_TIER");
  return best;
}

}  // namespace

const char* name_of(Tier tier) { return info(tier).name; }

Tier selected_tier(Work work) {
  std::atomic<int>& known = selected[static_cast<int>(work)];
  int tier = known.load(std::memory_order_relaxed);
  if (tier == kNone) {
    tier = static_cast<int>(initial_tier(work));
    known.store(tier, std::memory_order_relaxed);
  }
  return static_cast<Tier>(tier);
}

Tier begin_kernel(Work work) {
  const Tier tier = selected_tier(work);
  last.store(static_cast<int>(tier), std::memory_order_relaxed);
  return tier;
}

void select_tier(const std::string& name) {
  const int tier = name.empty() ? kNone : static_cast<int>(tier_named(name, ""));
  for (std::atomic<int>& each : selected) each.store(tier);
  asked.store(tier);
}

std::string asked_tier() { return name_if_any(asked.load()); }

void allow_stand_ins() { stand_ins_allowed.store(true); }

std::string last_tier() { return name_if_any(last.load()); }

void forget_last_tier() { last.store(kNone); }

std::string describe_tiers() {
  std::string tiers;
  double dots = 0;
  for (int i = 0; i < kTierCount; ++i) {
    const std::string& why = obstacle(static_cast<Tier>(i));
    if (why.empty() && kTiers[i].products == Products::dots) dots = dot_rate();
    tiers += concat({i ? ", " : "", "{\"name\": ", json_string(kTiers[i].name),
                     ", \"compiled\": ", kTiers[i].compiled ? "true" : "false",
                     ", \"runnable\": ", why.empty() ? "true" : "false", ", \"reason\": ", json_string(why),
                     ", \"run_as\": ", json_string(run_as(static_cast<Tier>(i))),
                     ", \"products\": ", json_string(kTiers[i].products_name),
                     ", \"flags\": ", json_string(kTiers[i].flags), "}"});
  }
  std::string shared;
#define KP_ENTRY(stem, tier, owner) "[\"" #stem "\", \"" #tier "\", \"" #owner "\"]",
  for (const char* entry : {KP_SHARED(KP_ENTRY) ""})
    if (*entry) shared += (shared.empty() ? "" : ", ") + std::string(entry);
#undef KP_ENTRY
  std::string multiply;
#define KP_ENTRY(stem) "\"" #stem "\"",
  for (const char* entry : {KP_MULTIPLY(KP_ENTRY) ""})
    if (*entry) multiply += (multiply.empty() ? "" : ", ") + std::string(entry);
#undef KP_ENTRY
  return concat({"{\"tiers\": [", tiers, "], \"shared\": [", shared, "], \"multiply\": [", multiply,
                 "], \"best\": ", json_string(name_of(best_tier(Work::products))),
                 ", \"best_without_products\": ", json_string(name_of(best_tier(Work::other))),
                 ", \"dot_rate\": ", dots, ", \"compiler\": ", json_string(KP_COMPILER),
                 ", \"build_type\": ", json_string(KP_BUILD_TYPE),
                 ", \"build_directory\": ", json_string(KP_BUILD_DIRECTORY), "}"});
}

}  // namespace kernelpair
