// How an operator reaches its kernel. A kernel takes one struct of arguments, declared with it in
// csrc/kernels/<stem>.h:
//
//   struct StoreCacheArguments {           // views are references: leaving one out does not compile
//     const View &k, &v;
//     const View& scale = kAbsent;         // but for one that few callers have
//     bool has_pad;
//   };
//   KP_KERNEL(store_cache, StoreCacheArguments);   // inside namespace kernelpair
//
// The operator calls the kernel of the selected tier, which is then the last one that ran:
//
//   kernels::store_cache({.k = k, .v = v, .has_pad = false});
//
// Where no tier was asked for, it is the best one for the work of that kernel, or for what the call says it is.
//
// The definition stands in csrc/kernels/<stem>.cpp: void store_cache(const StoreCacheArguments& call), in
// namespace kernelpair::KP_TIER. A definition for other arguments is an error of the linker.
//
// Where nothing in a kernel's source tells two tiers apart, it is compiled for the first of them alone: the other's
// kernel calls that one. CMake finds out and writes the sources with the calls, in which KP_KERNEL_OF is that tier.
// In a library that lacks a tier, functions that nobody calls stand in for its kernels (KP_KERNEL_ABSENT): so the
// operators' objects are the same whatever they are linked with.
#pragma once

#include "core/view.h"

#if defined(KP_KERNEL_ABSENT)

#define KP_KERNEL(name, Arguments)                  \
  namespace KP_TIER {                               \
  void name(const Arguments& arguments);            \
  void name(const Arguments&) { __builtin_trap(); } \
  }                                                 \
  static_assert(true)

#elif defined(KP_KERNEL_OF)

#define KP_KERNEL(name, Arguments)                                         \
  namespace KP_KERNEL_OF {                                                 \
  void name(const Arguments& arguments);                                   \
  }                                                                        \
  namespace KP_TIER {                                                      \
  void name(const Arguments& arguments) { KP_KERNEL_OF::name(arguments); } \
  }                                                                        \
  static_assert(true)

#elif defined(KP_TIER)

#define KP_KERNEL(name, Arguments)       \
  namespace KP_TIER {                    \
  void name(const Arguments& arguments); \
  }                                      \
  static_assert(true)

#else

#include "core/tier.h"

namespace kernelpair {

template <class Arguments>
struct Kernel {
  void (*of_tier[kTierCount])(const Arguments&);
  Work usual;
  void operator()(const Arguments& arguments) const { (*this)(arguments, usual); }
  void operator()(const Arguments& arguments, Work work) const {
    of_tier[static_cast<int>(begin_kernel(work))](arguments);
  }
};

}  // namespace kernelpair

#define KP_KERNEL(name, Arguments)                                                                      \
  KP_TIERS(KP_DECLARE_IN_TIER, name, Arguments)                                                         \
  namespace kernels {                                                                                   \
  constexpr ::kernelpair::Kernel<Arguments> name = {{KP_TIERS(KP_ADDRESS_IN_TIER, ::kernelpair, name)}, \
                                                    ::kernelpair::work_of(__FILE__)};                   \
  }                                                                                                     \
  static_assert(true)

#define KP_DECLARE_IN_TIER(tier, products, flags, features, name, Arguments) \
  namespace tier {                                                           \
  void name(const Arguments& arguments);                                     \
  }
#define KP_ADDRESS_IN_TIER(tier, products, flags, features, scope, name) &scope::tier::name,

#endif
