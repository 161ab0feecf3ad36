// The numbers that eager draws on processors, from PyTorch's own generator and in its order, but in
// vectors: eager makes one number after another, each by a call into the twister.
//
// A Mersenne twister keeps 624 words, each of which is made of three of the 624 before it, so a
// whole block is made at once; what is drawn of a word depends on that word alone. Which functions
// of the words eager's operators are differs between versions of PyTorch and its libraries, so it
// is tried once. Cost: a tenth of eager's or less, on one thread, and the generator's state (5 KB)
// copied twice.
#pragma once
#include <ATen/core/Generator.h>

#include <cstdint>
#include <span>

namespace ingot::trace {

/// Whether this PyTorch draws as this file does, with the state left behind. Tried once, on
/// generators of its own.
bool eager_draws_as_known();

// Fill `out` with the next numbers of the processor's generator `from`. Take its lock meanwhile.
// False, with nothing done, for a state that no seed leads to.

/// 1 with probability `p` (in [0, 1]), else 0: `bernoulli_` of a number, whatever it fills.
[[nodiscard]] bool draw_bernoulli(const at::Generator& from, double p, std::span<bool> out);
/// Uniform in [0, 1): `uniform_` of a type.
[[nodiscard]] bool draw_uniform(const at::Generator& from, std::span<float> out);
[[nodiscard]] bool draw_uniform(const at::Generator& from, std::span<double> out);

}  // namespace ingot::trace
