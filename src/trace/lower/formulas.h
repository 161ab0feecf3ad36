// Formulas that several lowerings share, as values of the graph.
#pragma once
#include "trace/lower/emitter.h"

namespace ingot::trace {

/// What layer_norm computes, all in the compute type; mean and rstd without the normalised dims.
struct LayerNorm {
    ValueId result, mean, rstd;
};

/// Normalises the last `rank` dims of `x`. `weight` and `bias` may be kNone. `refined`: the mean of
/// equal elements is that element (a sum over them is rounded otherwise), as on processors.
LayerNorm layer_norm(Emitter& e, ValueId x, std::size_t rank, ValueId weight, ValueId bias,
                     double eps, bool refined);

/// x * Phi(x) by the error function, in the type of `x`.
ValueId gelu(Emitter& e, ValueId x);

}  // namespace ingot::trace
