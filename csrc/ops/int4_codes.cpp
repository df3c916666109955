// int4_from_gptq and int4_from_awq: checks and registration. Contract: docs/contracts/int4_codes.md.
#include "kernels/int4_codes.h"

#include "core/operator.h"

namespace kernelpair {
namespace {

constexpr int64_t kWordCodes = 8;

struct Words {
  View weight, zeros;

  Words(const Tensor& qweight, const Tensor& qzeros)
      : weight(view_of("qweight", qweight)), zeros(view_of("qzeros", qzeros)) {
    for (const Arg& arg : {Arg{"qweight", weight}, Arg{"qzeros", zeros}}) {
      check_dtype(arg, {Dtype::i32});
      check_rank(arg, 2);
      KP_CHECK_VALUE(arg.view.sizes[0] >= 1 && arg.view.sizes[1] >= 1, arg.name,
                     " must not be empty, got shape ", shape_of(arg.view));
    }
  }

  void check_outputs(int64_t N) const {
    KP_CHECK_VALUE(N % kWordCodes == 0, "qweight must have a multiple of 8 outputs, got N = ", N);
    KP_CHECK_VALUE(zeros.sizes[1] == N / kWordCodes, "qzeros must have N / 8 = ", N / kWordCodes,
                   " columns, got shape ", shape_of(zeros));
  }
};

std::tuple<Tensor, Tensor> int4_from_gptq(const Tensor& qweight, const Tensor& qzeros, int64_t zero_offset) {
  const Words words(qweight, qzeros);
  const int64_t K = words.weight.sizes[0] * kWordCodes, N = words.weight.sizes[1];
  words.check_outputs(N);
  KP_CHECK_VALUE(zero_offset == 0 || zero_offset == 1, "zero_offset must be 0 or 1, got ", zero_offset);
  Tensor codes = new_tensor({N, K}, Dtype::u8), zeros = new_tensor({N, words.zeros.sizes[0]}, Dtype::u8);
  kernels::int4_from_gptq({.qweight = words.weight,
                           .qzeros = words.zeros,
                           .zero_offset = zero_offset,
                           .codes = view_of("codes", codes),
                           .zeros = view_of("zeros", zeros)});
  return {std::move(codes), std::move(zeros)};
}

std::tuple<Tensor, Tensor> int4_from_awq(const Tensor& qweight, const Tensor& qzeros) {
  const Words words(qweight, qzeros);
  const int64_t K = words.weight.sizes[0], N = words.weight.sizes[1] * kWordCodes;
  words.check_outputs(N);
  Tensor codes = new_tensor({N, K}, Dtype::u8), zeros = new_tensor({N, words.zeros.sizes[0]}, Dtype::u8);
  kernels::int4_from_awq({.qweight = words.weight,
                          .qzeros = words.zeros,
                          .zero_offset = 0,
                          .codes = view_of("codes", codes),
                          .zeros = view_of("zeros", zeros)});
  return {std::move(codes), std::move(zeros)};
}

}  // namespace

KP_OPERATOR(int4_from_gptq, "(Tensor qweight, Tensor qzeros, int zero_offset=1) -> (Tensor, Tensor)",
            "(qweight.new_empty((qweight.shape[1], qweight.shape[0] * 8), dtype=torch.uint8), "
            "qweight.new_empty((qweight.shape[1], qzeros.shape[0]), dtype=torch.uint8))");
KP_OPERATOR(int4_from_awq, "(Tensor qweight, Tensor qzeros) -> (Tensor, Tensor)",
            "(qweight.new_empty((qweight.shape[1] * 8, qweight.shape[0]), dtype=torch.uint8), "
            "qweight.new_empty((qweight.shape[1] * 8, qzeros.shape[0]), dtype=torch.uint8))");

}  // namespace kernelpair
