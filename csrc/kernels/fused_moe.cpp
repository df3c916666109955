// fused_moe and shared_expert: token-expert pairs are sorted by expert; their rows go through gate and up, the
// activation and down, as floats; then each token sums what its experts made of it, in the order of its ids. Every
// product is shared by all threads, panel by panel, so that one busy expert keeps them all busy.
#include "kernels/fused_moe.h"

#include "linear/expert_bytes.h"
#include "linear/expert_products.h"
#include "simd/dtypes.h"
#include "simd/each_vector.h"

namespace kernelpair::KP_TIER {
namespace {

constexpr int64_t kGrain = 16 << 10;

View dense_rows(void* data, Dtype dtype, int64_t rows, int64_t columns) {
  View view;
  view.data = data;
  view.dtype = dtype;
  view.dim = 2;
  view.sizes[0] = rows;
  view.sizes[1] = view.strides[0] = columns;
  view.strides[1] = 1;
  view.defined = true;
  return view;
}

// What lies between the steps of a call, for a chunk of tokens.
struct Buffers {
  int64_t* starts;
  SortedPairs sorted;
  char* packed;    // rows of a projection, as its products read them
  float* rows;     // what a projection gives: [pairs, 2 I], then [pairs, D]
  char* weighted;  // [tokens, D], of the router's weight on the input
  char* q;         // of int8 experts: the rows of a projection in bytes
  float* scale;    // ... and their scales
};

struct Moe {
  const FusedMoeArguments& call;
  int64_t tokens = call.x.sizes[0], D = call.x.sizes[1], experts = call.w13.data.sizes[0];
  int64_t k = call.topk_ids.defined ? call.topk_ids.sizes[1] : 1;
  bool int8 = call.w13.data.dtype == Dtype::i8;
  int64_t chunk = chunk_tokens();

  // Tokens of a chunk: as many in each, or fewer in the last.
  int64_t chunk_tokens() const {
    const int64_t limit = clamp(most(kChunkPairs, kExpertPairs * experts) / most(k, 1), 1, tokens);
    return divide_up(tokens, divide_up(tokens, limit));
  }

  template <class Engine>
  int64_t most_bytes(const ExpertWeights& weights) const {
    const int64_t blocks = PairSorter::most_blocks(experts, chunk * k);
    return (chunk * k / Engine::kRows + blocks) * Engine::group_bytes(weights);
  }

  template <class Engine>
  void allot(BumpAllocator room, Buffers& buffers, int64_t& bytes) const {
    const int64_t pairs = chunk * k;
    buffers.starts = room.take<int64_t>(experts + 1);
    buffers.sorted.pair = room.take<int32_t>(pairs);
    buffers.sorted.place = room.take<int32_t>(pairs);
    buffers.sorted.blocks = room.take<ExpertRows>(PairSorter::most_blocks(experts, pairs));
    buffers.packed = room.take<char>(most(most_bytes<Engine>(call.w13), most_bytes<Engine>(call.w2)));
    buffers.rows = room.take<float>(pairs * most(2 * call.inner, D));
    buffers.weighted =
        room.take<char>(call.apply_router_weight_on_input ? chunk * D * element_size(call.x.dtype) : 0);
    buffers.q = room.take<char>(int8 ? pairs * most(D, call.inner) : 0);
    buffers.scale = room.take<float>(int8 ? pairs : 0);
    bytes = room.used;
  }

  KP_INLINE float weight_of(int64_t t, int64_t j) const {
    return call.topk_weights.defined && !call.apply_router_weight_on_input
               ? *at<float>(call.topk_weights, t, j)
               : 1;
  }

  // The router's weight, rounded as x is, times x; of tokens without an expert nothing is read.
  template <class T>
  void weigh_input(int64_t first, int64_t count, T* to) const {
    parallel_for(count, kGrain / D + 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if (index_at(call.topk_ids, first + i, 0) < 0) continue;
        T rounded;
        store_one(&rounded, *at<float>(call.topk_weights, first + i, 0));
        const F32x16 weight = splat(load_one(&rounded));
        const T* x = at<T>(call.x, first + i);
        each_vector(0, D, [&](int64_t d, auto... lanes) {
          store(to + i * D + d, load(x + d, lanes...) * weight, lanes...);
        });
      }
    });
  }

  // The row that an expert made of a token, and its weight.
  struct Term {
    const float* row;
    float weight;
  };

  // What token i of a chunk is the sum of, in the order of its ids.
  int64_t collect(int64_t first, int64_t i, const Buffers& buffers, Term* terms) const {
    int64_t count = 0;
    for (int64_t j = 0; j < k; ++j) {
      const int64_t row = buffers.sorted.place[i * k + j];
      if (row < 0) continue;
      terms[count++] = {buffers.rows + row * D, weight_of(first + i, j)};
    }
    return count;
  }

  // out_t = sum_j weight y_tj, and what was routed elsewhere.
  template <class T>
  void combine(int64_t first, int64_t count, const Buffers& buffers) const {
    parallel_for(count, kGrain / ((k + 1) * D) + 1, [&](int64_t begin, int64_t end) {
      auto* terms = static_cast<Term*>(thread_scratch(k * static_cast<int64_t>(sizeof(Term))));
      for (int64_t i = begin; i < end; ++i) {
        const int64_t summed = collect(first, i, buffers, terms);
        each_vector(0, D, [&](int64_t d, auto... lanes) {
          F32x16 sum = zero();
          for (int64_t j = 0; j < summed; ++j)
            sum = fma(splat(terms[j].weight), load(terms[j].row + d, lanes...), sum);
          if (call.routed.defined)
            sum = fma(splat(call.routed_scaling_factor), load(at<T>(call.routed, first + i) + d, lanes...),
                      sum);
          store(at<T>(call.out, first + i) + d, sum, lanes...);
        });
      }
    });
  }

  template <class Engine, class Source>
  void project_rows(const ExpertWeights& weights, int64_t width, const Source& source,
                    Buffers& buffers) const {
    const int64_t rows = buffers.sorted.rows;
    const View out = dense_rows(buffers.rows, Dtype::f32, rows, width);
    if constexpr (Engine::kOfBytes) {
      const View q = dense_rows(buffers.q, Dtype::i8, rows, source.columns());
      const View scale = dense_rows(buffers.scale, Dtype::f32, rows, 1);
      const QuantizedRows bytes{q, scale};
      quantize_rows(source, buffers.sorted, bytes);
      project(Engine{{weights, out, bytes}}, bytes, buffers.sorted, buffers.packed);
    } else {
      project(Engine{{weights, out}}, source, buffers.sorted, buffers.packed);
    }
  }

  template <class T, class Engine>
  void run_chunk(int64_t first, int64_t count, Buffers& buffers) const {
    PairSorter{call.topk_ids, experts, k}.sort(first * k, count * k, buffers.starts, buffers.sorted);
    View x = dense_rows(buffers.weighted, call.x.dtype, count, D);
    if (call.apply_router_weight_on_input) {
      weigh_input(first, count, reinterpret_cast<T*>(buffers.weighted));
    } else {
      x = call.x;
      x.data = at(call.x, first);
      x.sizes[0] = count;
    }
    project_rows<Engine>(call.w13, 2 * call.inner, GatheredRows<T>{x, buffers.sorted.pair, k}, buffers);
    project_rows<Engine>(call.w2, D, ActivatedRows{buffers.rows, call.inner}, buffers);
    combine<T>(first, count, buffers);
  }

  template <class T, class Engine>
  void run() const {
    Buffers buffers;
    int64_t bytes = 0;
    allot<Engine>({nullptr}, buffers, bytes);
    allot<Engine>({static_cast<char*>(call_scratch(bytes))}, buffers, bytes);
    for (int64_t first = 0; first < tokens; first += chunk)
      run_chunk<T, Engine>(first, least(tokens - first, chunk), buffers);
  }
};

}  // namespace

void fused_moe(const FusedMoeArguments& call) {
  if (call.out.sizes[0] == 0) return;
  const Moe moe{call};
  if (moe.int8)
    return with_float(call.x.dtype, [&](auto element) {
      using T = decltype(element);
      kHasByteTiles ? moe.run<T, TileByteExperts>() : moe.run<T, VectorByteExperts>();
    });
  const bool codes = call.w13.data.dtype == Dtype::u8;
  if (kHasTiles && call.x.dtype == Dtype::bf16)
    return codes ? moe.run<Bf16, CodeExperts<TileEngine>>() : moe.run<Bf16, FloatExperts<TileEngine>>();
  with_vector_float(call.x.dtype, [&](auto element) {
    using T = decltype(element);
    codes ? moe.run<T, CodeExperts<VectorEngine>>() : moe.run<T, FloatExperts<VectorEngine>>();
  });
}

}  // namespace kernelpair::KP_TIER
