#include "common/tier.h"

#include <atomic>
#include <cstdlib>

#include "build_info.h"
#include "common/checks.h"

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace kernelpair {
namespace {

struct TierInfo {
  const char* name;
  bool compiled;
  const char* flags;
};

constexpr TierInfo kTiers[kTierCount] = {
    {"scalar", KP_HAVE_SCALAR, KP_FLAGS_SCALAR},
    {"avx2", KP_HAVE_AVX2, KP_FLAGS_AVX2},
    {"avx512", KP_HAVE_AVX512, KP_FLAGS_AVX512},
    {"avx512_bf16", KP_HAVE_AVX512_BF16, KP_FLAGS_AVX512_BF16},
    {"amx", KP_HAVE_AMX, KP_FLAGS_AMX},
    {"amx_emulated", KP_HAVE_AMX_EMULATED, KP_FLAGS_AMX_EMULATED},
};

#if defined(__x86_64__)

// Each tests exactly what the flags of its tier let the compiler use.
bool cpu_has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}

bool cpu_has_avx512() {
  return cpu_has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool cpu_has_avx512_bf16() { return cpu_has_avx512() && __builtin_cpu_supports("avx512bf16"); }

bool cpu_has_amx() {
  return cpu_has_avx512_bf16() && __builtin_cpu_supports("avx512vnni") &&
         __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("amx-tile") &&
         __builtin_cpu_supports("amx-bf16") && __builtin_cpu_supports("amx-int8");
}

// The kernel grants the tile registers to a process only on request; the grant survives fork, not exec.
bool tile_permission() {
#if defined(__linux__)
  constexpr int kArchRequestXcompPermission = 0x1023, kXfeatureTileData = 18;
  return syscall(SYS_arch_prctl, kArchRequestXcompPermission, kXfeatureTileData) == 0;
#else
  return false;
#endif
}

const char* missing(Tier tier) {
  switch (tier) {
    case Tier::avx2: return cpu_has_avx2() ? "" : "this CPU lacks AVX2, FMA, F16C or BMI";
    case Tier::avx512: return cpu_has_avx512() ? "" : "this CPU lacks AVX512 F, BW, DQ or VL";
    case Tier::avx512_bf16: return cpu_has_avx512_bf16() ? "" : "this CPU lacks AVX512 BF16, or F, BW, DQ or VL";
    case Tier::amx:
      if (!cpu_has_amx()) return "this CPU lacks AMX (tile, bf16, int8) or AVX512 BF16, VNNI or VBMI";
      return tile_permission() ? "" : "the operating system refuses the AMX tile registers";
    default: return "";
  }
}

#else

const char* missing(Tier) { return ""; }

#endif

// Empty if the tier can run here, else why not. Asked once a tier: the answer does not change while a process lives.
const std::string& obstacle(Tier tier) {
  static const auto* const obstacles = [] {
    auto* all = new std::string[kTierCount];
    for (int i = 0; i < kTierCount; ++i)
      all[i] = kTiers[i].compiled ? missing(static_cast<Tier>(i)) : "not compiled into this library";
    return all;
  }();
  return obstacles[static_cast<int>(tier)];
}

std::string names_of_tiers() {
  std::string names;
  for (const TierInfo& tier : kTiers) names += (names.empty() ? "" : ", ") + std::string(tier.name);
  return names;
}

Tier tier_named(const std::string& name, const char* source) {
  for (int i = 0; i < kTierCount; ++i) {
    if (name != kTiers[i].name) continue;
    const std::string& why = obstacle(static_cast<Tier>(i));
    KP_CHECK_VALUE(why.empty(), source, "tier '", name, "' cannot run here: ", why);
    return static_cast<Tier>(i);
  }
  fail(ErrorKind::value, concat(source, "there is no tier '", name, "'; the tiers are ", names_of_tiers()));
}

// VDPBF16PS does twice the work of an FMA in the same time on AMD's CPUs, and half of it on Intel's.
bool dot_products_pay() {
#if defined(__x86_64__)
  return !__builtin_cpu_is("intel");
#else
  return false;
#endif
}

Tier best_tier() {
  for (Tier tier : {Tier::amx, Tier::avx512_bf16, Tier::avx512, Tier::avx2})
    if (obstacle(tier).empty() && (tier != Tier::avx512_bf16 || dot_products_pay())) return tier;
  return Tier::scalar;
}

constexpr int kNone = -1;
std::atomic<int> selected{kNone};
std::atomic<int> last{kNone};

Tier initial_tier() {
  const char* forced = std::getenv("KERNELPAIR_TIER");
  return forced && *forced ? tier_named(forced, "KERNELPAIR_TIER: ") : best_tier();
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + "\"";
}

}  // namespace

const char* name_of(Tier tier) { return kTiers[static_cast<int>(tier)].name; }

Tier selected_tier() {
  int tier = selected.load(std::memory_order_relaxed);
  if (tier == kNone) {
    tier = static_cast<int>(initial_tier());
    selected.store(tier, std::memory_order_relaxed);
  }
  return static_cast<Tier>(tier);
}

Tier begin_kernel() {
  const Tier tier = selected_tier();
  last.store(static_cast<int>(tier), std::memory_order_relaxed);
  return tier;
}

void select_tier(const std::string& name) { selected.store(static_cast<int>(tier_named(name, ""))); }

std::string last_tier() {
  const int tier = last.load();
  return tier == kNone ? "" : kTiers[tier].name;
}

void forget_last_tier() { last.store(kNone); }

std::string describe_tiers() {
  std::string tiers;
  for (int i = 0; i < kTierCount; ++i) {
    const std::string& why = obstacle(static_cast<Tier>(i));
    tiers += concat(i ? ", " : "", "{\"name\": ", quoted(kTiers[i].name),
                    ", \"compiled\": ", kTiers[i].compiled ? "true" : "false",
                    ", \"runnable\": ", why.empty() ? "true" : "false", ", \"reason\": ", quoted(why),
                    ", \"flags\": ", quoted(kTiers[i].flags), "}");
  }
  return concat("{\"tiers\": [", tiers, "], \"best\": ", quoted(name_of(best_tier())), ", \"compiler\": ", quoted(KP_COMPILER),
                ", \"build_type\": ", quoted(KP_BUILD_TYPE), ", \"build_directory\": ", quoted(KP_BUILD_DIRECTORY), "}");
}

}  // namespace kernelpair
