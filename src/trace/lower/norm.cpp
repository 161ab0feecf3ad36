// Normalisations, in f32 for reduced floats and rounded once.
#include <numeric>

#include "trace/lower/formulas.h"
#include "trace/lower/promote.h"

namespace ingot::trace {

namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

struct Moments {
    ValueId mean, variance;  // dims removed, population variance
};
Moments moments(Emitter& e, ValueId x, const Ints& dims) {
    const SymInts sizes = e.sizes(x);
    c10::SymInt n = 1;
    for (std::int64_t d : dims) n *= sizes[at(d)];
    ValueId mean = e.div(e.reduce(Prim::Sum, x, dims, false), n);
    return {mean, e.reduce(Prim::Var, x, dims, false, {{"correction", 0.0}})};
}
/// `mean` and the mean of what is left. A sum over equal elements is rounded, and 1 / sqrt(eps)
/// times that rounding would be left of a constant row; the distances from it are exact, and the
/// loop that sums their squares sums them too.
ValueId refined_mean(Emitter& e, ValueId x, ValueId mean, const Ints& dims, const c10::SymInt& n) {
    ValueId away = e.sub(x, e.spread(mean, dims, e.sizes(x)));
    return e.add(mean, e.div(e.reduce(Prim::Sum, away, dims, false), n));
}
ValueId inverse_root(Emitter& e, ValueId variance, double eps) {
    return e.op(Prim::Rsqrt, {e.add(variance, eps)});
}
Ints last_dims(std::int64_t rank, std::size_t n) {
    Ints dims(n);
    std::iota(dims.begin(), dims.end(), rank - static_cast<std::int64_t>(n));
    return dims;
}
/// The type statistics are returned in: f32 when a reduced input has f32 parameters.
DType statistics_type(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
    DType t = to_dtype(x.scalar_type());
    const at::Tensor& p = weight.defined() ? weight : bias;
    return p.defined() && p.scalar_type() != x.scalar_type() ? DType::F32 : t;
}

void lower_layer_norm(Call& call) {
    at::Tensor x = call.tensor("input"), w = call.tensor_or_none("weight"),
               b = call.tensor_or_none("bias");
    Emitter& e = call.emit();
    SymInts shape = call.sizes("normalized_shape"), sizes = x.sym_sizes().vec();
    if (shape.empty()) throw UserError("layer_norm: a shape without dims");
    if (shape.size() > sizes.size())
        throw UserError("layer_norm: shape of higher rank than the input");
    Ints dims = last_dims(x.dim(), shape.size());
    for (std::size_t i = 0; i < shape.size(); ++i)
        if (shape[i] != sizes[at(dims[i])]) throw UserError("layer_norm: shapes differ");
    const auto read = [&](const at::Tensor& t) { return t.defined() ? call.read(t) : kNone; };
    const LayerNorm n = layer_norm(e, call.read(x), shape.size(), read(w), read(b),
                                   call.real("eps"), x.device().is_cpu());
    call.give(e.convert(n.result, to_dtype(x.scalar_type())), contiguous(sizes), x.device());
    SymInts kept = sizes;
    for (std::int64_t d : dims) kept[at(d)] = 1;
    // On GPUs always the type they are computed in.
    const DType st = x.device().is_cpu() ? statistics_type(x, w, b) : e.dtype(n.mean);
    for (ValueId s : {n.mean, n.rstd})
        call.give(e.convert(e.reshape(s, kept), st), contiguous(kept), x.device());
}

void lower_group_norm(Call& call) {
    at::Tensor x = call.tensor("input"), w = call.tensor_or_none("weight"),
               b = call.tensor_or_none("bias");
    Emitter& e = call.emit();
    const c10::SymInt n = call.size("N"), c = call.size("C"), hw = call.size("HxW"),
                      g = call.integer("group");
    if (g <= 0 || c % g != 0) throw UserError("group_norm: the groups do not divide the channels");
    if (!is_contiguous(layout_of(x), suggested_format(layout_of(x))))
        throw UserError("native_group_norm: Expected X.is_contiguous(memory_format) to be true");
    SymInts sizes = x.sym_sizes().vec(), grouped{n, g, c / g, hw};
    ValueId v = e.reshape(e.widen(call.read(x)), grouped);
    Moments m = moments(e, v, {2, 3});
    if (x.device().is_cpu()) m.mean = refined_mean(e, v, m.mean, {2, 3}, c / g * hw);
    ValueId rstd = inverse_root(e, m.variance, call.real("eps"));
    ValueId y = e.mul(e.sub(v, e.spread(m.mean, {2, 3}, grouped)), e.spread(rstd, {2, 3}, grouped));
    auto parameter = [&](const at::Tensor& p) {
        return e.expand(e.reshape(e.convert(call.read(p), e.dtype(y)), {1, g, c / g, 1}), grouped);
    };
    if (w.defined()) y = e.mul(y, parameter(w));
    if (b.defined()) y = e.add(y, parameter(b));
    y = e.convert(e.reshape(y, sizes), to_dtype(x.scalar_type()));
    call.give(y, format_strides(sizes, suggested_format(layout_of(x))), x.device());
    DType st = statistics_type(x, w, b);
    for (ValueId s : {m.mean, rstd}) call.give(e.convert(s, st), contiguous({n, g}), x.device());
}

/// batch_norm of any flavour. Evaluation: y = x * alpha + beta with per-channel alpha and beta, so
/// that a convolution before can absorb them.
void lower_batch_norm(Call& call) {
    at::Tensor x = call.tensor("input"), w = call.tensor_or_none("weight"),
               b = call.tensor_or_none("bias");
    at::Tensor rm = call.tensor_or_none("running_mean"), rv = call.tensor_or_none("running_var");
    Emitter& e = call.emit();
    bool frozen_call = call.find("training") == nullptr && call.overload() != "no_stats";
    bool with_update = call.find("momentum") != nullptr && frozen_call;  // _batch_norm_with_update
    bool training = call.find("training") != nullptr ? call.flag("training") : with_update;
    const bool vendor = call.find("epsilon") != nullptr;  // cudnn_batch_norm
    double eps = call.real(vendor ? "epsilon" : "eps");
    SymInts sizes = x.sym_sizes().vec();
    DType type = to_dtype(x.scalar_type());
    if (x.dim() < 2) throw UserError("batch_norm needs two dims");
    const c10::SymInt c = sizes[1];
    Ints dims;
    for (std::int64_t d = 0; d < x.dim(); ++d)
        if (d != 1) dims.push_back(d);
    ValueId v = e.widen(call.read(x));
    DType wide = e.dtype(v);
    ValueId mean, variance;
    if (training) {
        Moments m = moments(e, v, dims);
        if (x.device().is_cpu()) m.mean = refined_mean(e, v, m.mean, dims, numel(sizes) / c.max(1));
        mean = m.mean;
        variance = m.variance;
    } else {
        if (!rm.defined() || !rv.defined()) throw UserError("batch_norm: no running statistics");
        mean = e.convert(call.read(rm), wide);
        variance = e.convert(call.read(rv), wide);
    }
    ValueId one = e.full(wide, {c}, 1.0), zero = e.full(wide, {c}, 0.0);
    ValueId weight = w.defined() ? e.convert(call.read(w), wide) : one;
    ValueId bias = b.defined() ? e.convert(call.read(b), wide) : zero;
    ValueId invstd = e.div(one, e.op(Prim::Sqrt, {e.add(variance, eps)}));
    ValueId alpha = e.mul(weight, invstd);
    ValueId beta = e.sub(bias, e.mul(mean, alpha));
    ValueId y = e.add(e.mul(v, e.spread(alpha, dims, sizes)), e.spread(beta, dims, sizes));
    Layout l = layout_of(x);
    SymInts strides =
        is_contiguous(l) ? contiguous(sizes) : format_strides(sizes, suggested_format(l));
    call.give(e.convert(y, type), strides, x.device());
    // On GPUs always the type they are computed in; there evaluation hands them out too.
    const bool gpu = x.device().is_cuda();
    const DType st = gpu ? wide : statistics_type(x, w, b);
    if (training || (gpu && !vendor)) {
        for (ValueId s : {mean, invstd}) call.give(e.convert(s, st), {1}, x.device());
    } else {
        ValueId none = e.full(st, {0}, 0.0);
        for (int i = 0; i < 2; ++i) call.give(none, {1}, x.device());
    }
    if (training) {
        double momentum = call.real_or(vendor ? "exponential_average_factor" : "momentum", 0.1);
        const c10::SymInt n = numel(sizes) / c.max(1);
        auto update = [&](const at::Tensor& running, ValueId fresh) {
            ValueId old = e.convert(call.read(running), wide);
            call.write(running, e.add(e.mul(fresh, momentum), e.mul(old, 1 - momentum)));
        };
        if (rm.defined()) update(rm, mean);
        if (rv.defined()) {
            if (const auto number = n.maybe_as_int()) {
                const auto count = static_cast<double>(*number);
                update(rv, e.mul(variance, count / (count - 1)));
            } else {
                update(rv, e.add(variance, e.div(variance, n - 1)));
            }
        }
    }
    // The reserve of cuDNN's and of the unified operators.
    if (vendor || (call.find("training") == nullptr && frozen_call))
        call.give(e.full(DType::U8, {0}, 0), {1}, x.device());
}

}  // namespace

LayerNorm layer_norm(Emitter& e, ValueId x, std::size_t rank, ValueId weight, ValueId bias,
                     double eps, bool refined) {
    const SymInts sizes = e.sizes(x);
    const Ints dims = last_dims(static_cast<std::int64_t>(sizes.size()), rank);
    const SymInts shape(sizes.end() - static_cast<std::ptrdiff_t>(rank), sizes.end());
    ValueId v = e.widen(x);
    Moments m = moments(e, v, dims);
    if (refined) m.mean = refined_mean(e, v, m.mean, dims, numel(shape));
    ValueId rstd = inverse_root(e, m.variance, eps);
    ValueId y = e.mul(e.sub(v, e.spread(m.mean, dims, sizes)), e.spread(rstd, dims, sizes));
    if (weight != kNone) y = e.mul(y, e.expand(e.convert(weight, e.dtype(y)), sizes));
    if (bias != kNone) y = e.add(y, e.expand(e.convert(bias, e.dtype(y)), sizes));
    return {y, m.mean, rstd};
}

std::span<const LoweringEntry> norm_lowerings() {
    static constexpr LoweringEntry table[] = {
        {"native_layer_norm", lower_layer_norm},
        {"native_group_norm", lower_group_norm},
        {"native_batch_norm", lower_batch_norm},
        {"_native_batch_norm_legit", lower_batch_norm},
        {"_native_batch_norm_legit_no_training", lower_batch_norm},
        {"cudnn_batch_norm", lower_batch_norm},
        {"_batch_norm_with_update", lower_batch_norm},
        {"_batch_norm_no_update", lower_batch_norm},
    };
    return table;
}

}  // namespace ingot::trace
