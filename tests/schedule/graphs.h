// Small builders for the scheduler's tests.
#pragma once
#include "ir/graph.h"

namespace ingot::testing {

inline ValueId input(Graph& g, Sizes sizes, DType dtype = DType::F32, bool frozen = false) {
    Sizes strides = contiguous_strides(sizes);
    return g.add_input({dtype, std::move(sizes), {}}, "in" + std::to_string(g.inputs().size()),
                       std::move(strides), frozen);
}

inline void output(Graph& g, ValueId v) {
    Sizes strides = contiguous_strides(g.type(v).sizes);
    g.add_output(v, std::move(strides));
}

/// `v` (whose sizes are those of `sizes` without `gone`) repeated along `gone`.
inline ValueId repeat(Graph& g, ValueId v, const Sizes& sizes, const Ints& gone) {
    Ints dims;
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(sizes.size()); ++i)
        if (std::find(gone.begin(), gone.end(), i) == gone.end()) dims.push_back(i);
    return g.emit(Prim::Broadcast, {v}, {{"sizes", sizes}, {"dims", dims}});
}

inline ValueId full(Graph& g, ValueId like, double value) {
    const Type t = g.type(like);
    return g.emit(Prim::Full, {},
                  {{"dtype", t.dtype}, {"sizes", t.sizes}, {"value", Scalar(value)}});
}

inline ValueId softmax(Graph& g, ValueId x, std::int64_t dim) {
    const Sizes sizes = g.type(x).sizes;
    ValueId m = g.emit(Prim::Amax, {x}, {{"dims", Ints{dim}}});
    ValueId e = g.emit(Prim::Exp, {g.emit(Prim::Sub, {x, repeat(g, m, sizes, {dim})})});
    ValueId s = g.emit(Prim::Sum, {e}, {{"dims", Ints{dim}}});
    return g.emit(Prim::Div, {e, repeat(g, s, sizes, {dim})});
}

/// Normalisation over the last dim with weight and bias.
inline ValueId layer_norm(Graph& g, ValueId x, ValueId weight, ValueId bias) {
    const Sizes sizes = g.type(x).sizes;
    auto last = static_cast<std::int64_t>(sizes.size()) - 1;
    ValueId sum = g.emit(Prim::Sum, {x}, {{"dims", Ints{last}}});
    ValueId mean =
        g.emit(Prim::Div, {sum, full(g, sum, static_cast<double>(sizes.back().constant()))});
    ValueId var = g.emit(Prim::Var, {x}, {{"dims", Ints{last}}, {"correction", 0.0}});
    ValueId r = g.emit(Prim::Rsqrt, {g.emit(Prim::Add, {var, full(g, var, 1e-5)})});
    ValueId y = g.emit(Prim::Sub, {x, repeat(g, mean, sizes, {last})});
    y = g.emit(Prim::Mul, {y, repeat(g, r, sizes, {last})});
    Ints front;
    for (std::int64_t i = 0; i < last; ++i) front.push_back(i);
    y = g.emit(Prim::Mul, {y, repeat(g, weight, sizes, front)});
    return g.emit(Prim::Add, {y, repeat(g, bias, sizes, front)});
}

}  // namespace ingot::testing
