// Scores become exponents of 2.
#pragma once

namespace kernelpair {

constexpr float kLog2E = 1.44269504088896341f;
constexpr float kMostFactor = 1e38f;  // of scores: log2(e) times more would leave float32

}  // namespace kernelpair
