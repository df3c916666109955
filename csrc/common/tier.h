// Tiers: which builds of the kernels exist, which can run here, which one is selected, which one ran last.
//
// A kernel is declared once in its ops file and dispatched by name:
//
//   KP_KERNEL(store_cache, (const View& k, const View& v));   // inside namespace kernelpair
//   KP_DISPATCH(store_cache)(k, v);                           // runs the selected tier and records it
//
// The definition lives in csrc/kernels/store_cache.cpp in namespace kernelpair::KP_TIER; mangled names make a signature
// that differs a link error.
#pragma once

#include <string>

#include "common/view.h"

// KP_HAVE_<TIER> is 0 or 1 for each tier (CMakeLists.txt): whether its kernels are part of this library.
#if KP_HAVE_SCALAR
#define KP_IF_SCALAR(yes, no) yes
#else
#define KP_IF_SCALAR(yes, no) no
#endif
#if KP_HAVE_AVX2
#define KP_IF_AVX2(yes, no) yes
#else
#define KP_IF_AVX2(yes, no) no
#endif
#if KP_HAVE_AVX512
#define KP_IF_AVX512(yes, no) yes
#else
#define KP_IF_AVX512(yes, no) no
#endif
#if KP_HAVE_AVX512_BF16
#define KP_IF_AVX512_BF16(yes, no) yes
#else
#define KP_IF_AVX512_BF16(yes, no) no
#endif
#if KP_HAVE_AMX
#define KP_IF_AMX(yes, no) yes
#else
#define KP_IF_AMX(yes, no) no
#endif
#if KP_HAVE_AMX_EMULATED
#define KP_IF_AMX_EMULATED(yes, no) yes
#else
#define KP_IF_AMX_EMULATED(yes, no) no
#endif

namespace kernelpair {

// From what any CPU has to what few have; amx_emulated runs only when asked for.
enum class Tier : int { scalar, avx2, avx512, avx512_bf16, amx, amx_emulated };
constexpr int kTierCount = 6;

template <class Function>
struct Kernel {
  Function* of_tier[kTierCount];  // null where the tier is not compiled
};

// The selected tier, taken from KERNELPAIR_TIER or the best of this CPU at the first call; recorded as the last one that ran.
Tier begin_kernel();

template <class Function>
Function* dispatch(const Kernel<Function>& kernel) {
  return kernel.of_tier[static_cast<int>(begin_kernel())];
}

const char* name_of(Tier tier);
Tier selected_tier();
void select_tier(const std::string& name);  // ValueError for a tier that is unknown or cannot run here
std::string last_tier();                    // empty if no kernel ran since the last forget_last_tier()
void forget_last_tier();
std::string describe_tiers();  // JSON for the Python face

}  // namespace kernelpair

#define KP_KERNEL(name, parameters)                                                               \
  namespace scalar { void name parameters; }                                                      \
  namespace avx2 { void name parameters; }                                                        \
  namespace avx512 { void name parameters; }                                                      \
  namespace avx512_bf16 { void name parameters; }                                                 \
  namespace amx { void name parameters; }                                                         \
  namespace amx_emulated { void name parameters; }                                                \
  static constexpr ::kernelpair::Kernel<void parameters> name##_kernel = {                        \
      {KP_IF_SCALAR(&scalar::name, nullptr), KP_IF_AVX2(&avx2::name, nullptr),                    \
       KP_IF_AVX512(&avx512::name, nullptr), KP_IF_AVX512_BF16(&avx512_bf16::name, nullptr),      \
       KP_IF_AMX(&amx::name, nullptr), KP_IF_AMX_EMULATED(&amx_emulated::name, nullptr)}}

#define KP_DISPATCH(name) (*::kernelpair::dispatch(name##_kernel))
