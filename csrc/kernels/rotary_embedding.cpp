// rotary_embedding: a token's cosines and sines are widened to float32 once, in the order in which a head's
// elements meet them, and serve all of its heads. A vector is x c + (partner) s in both pairings, rounded
// alike, so that the pairings agree bit for bit. Where bf16 is taken thirty-two elements at a time, even and odd ones
// apart (simd/wide.h), neighbours need no exchange, and the angles of halves stand in that order too.
#include "kernels/rotary_embedding.h"

#include "core/integers.h"
#include "core/parallel.h"
#include "core/path.h"
#include "simd/dtypes.h"
#include "simd/each_vector.h"
#include "simd/neighbours.h"
#include "simd/pairs.h"
#include "simd/wide.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int64_t kGrain = 32 << 10;  // elements, about 5 us
constexpr int64_t kBlockPairs = 128;  // of a head's, whose angles are kept at a time: most heads have no more
constexpr int64_t kFloats = 2 * kBlockPairs;

KP_PATH(rotate_neox);
KP_PATH(rotate_gptj);
KP_PATH(rotate_axes);

// Of the pairs [first, first + count) of one token: `along` is what an element is multiplied by, `across` what
// its partner is. Halves: c and s of each pair. Neighbours: c c, and -s s; and c and s of each pair once more.
struct Angles {
  float along[kFloats], across[kFloats];
  float c[kBlockPairs], s[kBlockPairs];
};

// Whether 32 elements of T are two vectors of every other one.
template <class T>
constexpr bool kApart = !kWideInOrder<T>;
// The same in halves, where it is worth that angles are brought into that order.
template <class T>
constexpr bool kHalvesApart = kApart<T> && !kRoundsBf16;

int64_t axis_of(const RotaryEmbeddingArguments& call, int64_t pair) {
  const int64_t turn = pair % 3;
  if (call.interleaved) return turn > 0 && pair < 3 * call.section[turn] ? turn : 0;
  return pair < call.section[0] ? 0 : pair < call.section[0] + call.section[1] ? 1 : 2;
}

template <class C>
void widen(const C* row, int64_t half, int64_t first, int64_t count, float* c, float* s) {
  each_vector(0, count, [&](int64_t j, auto... lanes) {
    store(c + j, load(row + first + j, lanes...), lanes...);
    store(s + j, load(row + half + first + j, lanes...), lanes...);
  });
}

// c and s of the pairs, from the row of each pair's own axis.
template <class C>
void look_up(const RotaryEmbeddingArguments& call, int64_t t, int64_t first, int64_t count, float* c,
             float* s) {
  const int64_t half = call.cache.sizes[1] / 2;
  widen(at<C>(call.cache, index_at(call.positions, 0, t)), half, first, count, c, s);
  for (int64_t axis = 1; axis < call.positions.sizes[0]; ++axis) {
    float other_c[kBlockPairs], other_s[kBlockPairs];
    widen(at<C>(call.cache, index_at(call.positions, axis, t)), half, first, count, other_c, other_s);
    for (int64_t j = 0; j < count; ++j)
      if (axis_of(call, first + j) == axis) c[j] = other_c[j], s[j] = other_s[j];
  }
}

// From halves to neighbours. The last vectors may hold more than there is: the arrays have room.
void spread(int64_t count, Angles& angles) {
  for (int64_t j = 0; j < round_up(count, kLanes); ++j) {
    angles.c[j] = j < count ? angles.along[j] : 0;
    angles.s[j] = j < count ? angles.across[j] : 0;
  }
  for (int64_t j = 0; j < count; j += kLanes) {
    F32x16 along = load(angles.c + j), along_high = along;
    F32x16 across_high = load(angles.s + j), across = -across_high;
    interleave(along, along_high);
    interleave(across, across_high);
    store(angles.along + 2 * j, along);
    store(angles.along + 2 * j + kLanes, along_high);
    store(angles.across + 2 * j, across);
    store(angles.across + 2 * j + kLanes, across_high);
  }
}

// Angles of halves in the order of wide loads, as far as there are whole ones.
void separate(int64_t count, float* angles) {
  for (int64_t j = 0; j + kPair <= count; j += kPair) {
    F32x32 apart;
    load_split(angles + j, apart.first, apart.second);
    store(angles + j, apart, Wide{});
  }
}

template <class T>
void rotate_halves(T* x, T* y, int64_t count, const Angles& angles) {
  each_wide<kHalvesApart<T>>(0, count, [&](int64_t j, auto... lanes) {
    const auto c = load(angles.along + j, lanes...), s = load(angles.across + j, lanes...);
    const auto old_x = load(x + j, lanes...), old_y = load(y + j, lanes...);
    store(x + j, fma(old_y, -s, old_x * c), lanes...);
    store(y + j, fma(old_x, s, old_y * c), lanes...);
  });
}

template <class T>
void rotate_neighbours(T* x, int64_t count, const Angles& angles) {
  int64_t done = 0;
  for (; kApart<T> && done + kPair <= 2 * count; done += kPair) {
    const F32x16 c = load(angles.c + done / 2), s = load(angles.s + done / 2);
    const auto [even, odd] = load(x + done, Wide{});
    store(x + done, F32x32{fma(odd, -s, even * c), fma(even, s, odd * c)}, Wide{});
  }
  each_vector(done, 2 * count, [&](int64_t d, auto... lanes) {
    const F32x16 c = load(angles.along + d, lanes...), s = load(angles.across + d, lanes...);
    const F32x16 old = load(x + d, lanes...);
    store(x + d, fma(swap_neighbours(old), s, old * c), lanes...);
  });
}

template <class T>
void rotate_heads(const RotaryEmbeddingArguments& call, const View& heads, int64_t t, int64_t first,
                  int64_t count, const Angles& angles) {
  if (!heads.defined) return;
  const int64_t half = call.cache.sizes[1] / 2;
  for (int64_t h = 0; h < heads.sizes[1]; ++h) {
    T* head = at<T>(heads, t, h);
    if (call.is_neox)
      rotate_halves(head + first, head + half + first, count, angles);
    else
      rotate_neighbours(head + 2 * first, count, angles);
  }
}

template <class T, class C>
void rotate_token(const RotaryEmbeddingArguments& call, int64_t t) {
  const int64_t half = call.cache.sizes[1] / 2;
  for (int64_t first = 0; first < half; first += kBlockPairs) {
    const int64_t count = least(half - first, kBlockPairs);
    Angles angles;
    look_up<C>(call, t, first, count, angles.along, angles.across);
    if (!call.is_neox)
      spread(count, angles);
    else if (kHalvesApart<T>)
      separate(count, angles.along), separate(count, angles.across);
    rotate_heads<T>(call, call.query, t, first, count, angles);
    rotate_heads<T>(call, call.key, t, first, count, angles);
  }
}

template <class T, class C>
void run(const RotaryEmbeddingArguments& call) {
  const int64_t heads = call.query.sizes[1] + (call.key.defined ? call.key.sizes[1] : 0);
  const int64_t grain = kGrain / (heads * call.cache.sizes[1] + 1) + 1;
  parallel_for(call.query.sizes[0], grain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) rotate_token<T, C>(call, t);
  });
}

}  // namespace

void rotary_embedding(const RotaryEmbeddingArguments& call) {
  mark(call.is_neox ? paths::rotate_neox : paths::rotate_gptj);
  if (call.positions.sizes[0] > 1) mark(paths::rotate_axes);
  with_float(call.query.dtype, [&](auto element) {
    using T = decltype(element);
    call.cache.dtype == Dtype::f32 ? run<T, float>(call) : run<T, T>(call);
  });
}

}  // namespace kernelpair::KP_TIER
