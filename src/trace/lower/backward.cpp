// Gradients of normalisations, convolutions, losses and activations, as PyTorch's autograd asks for
// them. As prims they fuse with what stands around them: a norm's gradient is one kernel with the
// residual's addition before it, a loss's with the softmax's.
#include <ATen/core/Reduction.h>

#include <numeric>

#include "trace/lower/conv.h"
#include "trace/lower/promote.h"

namespace ingot::trace {

namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

bool wanted(Call& call, std::size_t result) {
    return call.find("output_mask") == nullptr || call.at("output_mask").toBoolList().get(result);
}

// ---- convolution ----

void lower_convolution_backward(Call& call) {
    at::Tensor grad = call.tensor("grad_output"), x = call.tensor("input"),
               w = call.tensor("weight");
    if (x.dim() != w.dim() || !is_float(to_dtype(x.scalar_type())))
        throw NotSupported("convolution_backward of this form");
    const std::size_t n = at(w.dim() - 2);
    Emitter& e = call.emit();
    ValueId g = call.read(grad);
    Attrs attrs = conv_attrs(call, n);
    auto gradient = [&](Prim prim, const at::Tensor& other, const at::Tensor& of) {
        attrs.set("sizes", to_sizes(of.sym_sizes()));
        call.give(e.op(prim, {g, call.read(other)}, attrs),
                  conv_strides(call, x, w, of.sym_sizes().vec()), of.device());
    };
    if (wanted(call, 0))
        gradient(Prim::ConvGradInput, w, x);
    else
        call.give(at::Tensor());
    if (wanted(call, 1))
        gradient(Prim::ConvGradWeight, x, w);
    else
        call.give(at::Tensor());
    if (!wanted(call, 2)) return call.give(at::Tensor());
    Ints dims(at(grad.dim()));
    std::iota(dims.begin(), dims.end(), 0);
    dims.erase(dims.begin() + 1);
    ValueId sum = e.reduce(Prim::Sum, e.widen(g), dims, false);
    call.give(e.convert(sum, e.dtype(g)), {1}, grad.device());
}

// ---- normalisations ----

/// What a normalisation's gradient is made of: all in the wide type and the shape of x.
struct Norm {
    ValueId grad;        // of the result
    ValueId normalised;  // (x - mean) * rstd
    ValueId rstd;
    ValueId weight = kNone;
};

/// The gradient of x when statistics run over `dims`: (w g - mean(w g) - n mean(w g n)) rstd.
ValueId gradient_of_input(Emitter& e, const Norm& n, const Ints& dims) {
    const SymInts sizes = e.sizes(n.grad);
    c10::SymInt count = 1;
    for (std::int64_t d : dims) count *= sizes[at(d)];
    ValueId g = n.weight == kNone ? n.grad : e.mul(n.grad, n.weight);
    auto mean = [&](ValueId v) {
        return e.spread(e.div(e.reduce(Prim::Sum, v, dims, false), count), dims, sizes);
    };
    ValueId projected = e.mul(n.normalised, mean(e.mul(g, n.normalised)));
    return e.mul(e.sub(e.sub(g, mean(g)), projected), n.rstd);
}

void lower_layer_norm_backward(Call& call) {
    at::Tensor grad = call.tensor("grad_out"), x = call.tensor("input"),
               w = call.tensor_or_none("weight"), b = call.tensor_or_none("bias");
    Emitter& e = call.emit();
    const std::size_t inner = call.sizes("normalized_shape").size();
    const SymInts sizes = x.sym_sizes().vec();
    Ints outer(sizes.size() - inner), dims(inner);
    std::iota(outer.begin(), outer.end(), 0);
    std::iota(dims.begin(), dims.end(), static_cast<std::int64_t>(outer.size()));
    ValueId v = e.widen(call.read(x));
    DType wide = e.dtype(v);
    auto statistic = [&](const char* name) {
        return e.expand(e.convert(call.read(call.tensor(name)), wide), sizes);
    };
    Norm n;
    n.grad = e.convert(call.read(grad), wide);
    n.rstd = statistic("rstd");
    n.normalised = e.mul(e.sub(v, statistic("mean")), n.rstd);
    if (w.defined()) n.weight = e.expand(e.convert(call.read(w), wide), sizes);
    if (wanted(call, 0))
        call.give(e.convert(gradient_of_input(e, n, dims), to_dtype(x.scalar_type())),
                  contiguous(sizes), x.device());
    else
        call.give(at::Tensor());
    auto parameter = [&](std::size_t index, const at::Tensor& p, ValueId terms) {
        if (!wanted(call, index) || !p.defined()) return call.give(at::Tensor());
        ValueId sum = e.reduce(Prim::Sum, terms, outer, false);
        call.give(e.convert(sum, to_dtype(p.scalar_type())), contiguous(p.sym_sizes().vec()),
                  p.device());
    };
    parameter(1, w, e.mul(n.grad, n.normalised));
    parameter(2, b, n.grad);
}

void lower_group_norm_backward(Call& call) {
    at::Tensor grad = call.tensor("grad_out"), x = call.tensor("input"),
               w = call.tensor_or_none("weight");
    Emitter& e = call.emit();
    const c10::SymInt batch = call.size("N"), c = call.size("C"), hw = call.size("HxW"),
                      groups = call.integer("group");
    if (groups <= 0) throw UserError("group_norm: no groups");
    const SymInts grouped{batch, groups, c / groups, hw};
    ValueId v = e.reshape(e.widen(call.read(x)), grouped);
    DType wide = e.dtype(v);
    auto statistic = [&](const char* name) {
        ValueId s = e.convert(call.read(call.tensor(name)), wide);
        return e.expand(e.reshape(s, {batch, groups, 1, 1}), grouped);
    };
    Norm n;
    n.grad = e.reshape(e.convert(call.read(grad), wide), grouped);
    n.rstd = statistic("rstd");
    n.normalised = e.mul(e.sub(v, statistic("mean")), n.rstd);
    if (w.defined())
        n.weight =
            e.expand(e.reshape(e.convert(call.read(w), wide), {1, groups, c / groups, 1}), grouped);
    const SymInts sizes = x.sym_sizes().vec();
    if (wanted(call, 0))
        call.give(
            e.convert(e.reshape(gradient_of_input(e, n, {2, 3}), sizes), to_dtype(x.scalar_type())),
            format_strides(sizes, suggested_format(layout_of(x))), x.device());
    else
        call.give(at::Tensor());
    DType parameters = w.defined() ? to_dtype(w.scalar_type()) : to_dtype(x.scalar_type());
    auto parameter = [&](std::size_t index, ValueId terms) {
        if (!wanted(call, index)) return call.give(at::Tensor());
        ValueId sum = e.reshape(e.reduce(Prim::Sum, terms, {0, 3}, false), {c});
        call.give(e.convert(sum, parameters), {1}, x.device());
    };
    parameter(1, e.mul(n.grad, n.normalised));
    parameter(2, n.grad);
}

void lower_batch_norm_backward(Call& call) {
    const bool native = call.find("train") != nullptr;
    const bool vendor = call.find("epsilon") != nullptr;  // cudnn_batch_norm_backward
    at::Tensor grad = call.tensor(vendor ? "grad_output" : "grad_out"), x = call.tensor("input"),
               w = call.tensor_or_none("weight");
    const bool training = vendor || call.flag(native ? "train" : "update");
    Emitter& e = call.emit();
    const SymInts sizes = x.sym_sizes().vec();
    Ints dims;
    for (std::int64_t d = 0; d < x.dim(); ++d)
        if (d != 1) dims.push_back(d);
    ValueId v = e.widen(call.read(x));
    DType wide = e.dtype(v);
    auto channels = [&](ValueId s) { return e.spread(s, dims, sizes); };
    auto statistic = [&](const char* name) {
        return e.convert(call.read(call.tensor(name)), wide);
    };
    ValueId mean, invstd;
    if (training) {
        mean = statistic("save_mean");
        invstd = statistic(native ? "save_invstd" : "save_var");
    } else {
        mean = statistic("running_mean");
        ValueId variance = e.add(statistic("running_var"), call.real("eps"));
        invstd = e.div(e.number(variance, 1), e.op(Prim::Sqrt, {variance}));
    }
    Norm n;
    n.grad = e.convert(call.read(grad), wide);
    n.rstd = channels(invstd);
    n.normalised = e.mul(e.sub(v, channels(mean)), n.rstd);
    ValueId weight = w.defined() ? e.convert(call.read(w), wide) : kNone;
    // The weight is a channel's, so that the gradients of all three are made of two sums.
    const ValueId of_bias = e.reduce(Prim::Sum, n.grad, dims, false);
    const ValueId of_weight = e.reduce(Prim::Sum, e.mul(n.grad, n.normalised), dims, false);
    if (wanted(call, 0)) {
        ValueId dx = n.grad;
        if (training) {
            const c10::SymInt count = numel(sizes) / sizes[1].max(1);
            dx = e.sub(dx, channels(e.div(of_bias, count)));
            dx = e.sub(dx, e.mul(n.normalised, channels(e.div(of_weight, count))));
        }
        dx = e.mul(dx, channels(weight == kNone ? invstd : e.mul(weight, invstd)));
        Layout l = layout_of(x);
        SymInts strides =
            is_contiguous(l) ? contiguous(sizes) : format_strides(sizes, suggested_format(l));
        call.give(e.convert(dx, to_dtype(x.scalar_type())), strides, x.device());
    } else {
        call.give(at::Tensor());
    }
    DType parameters = w.defined() ? to_dtype(w.scalar_type()) : to_dtype(x.scalar_type());
    auto parameter = [&](std::size_t index, ValueId sum) {
        if (!wanted(call, index)) return call.give(at::Tensor());
        call.give(e.convert(sum, parameters), {1}, x.device());
    };
    parameter(1, of_weight);
    parameter(2, of_bias);
}

// ---- losses ----

/// Negative log likelihood: a comparison with the class's number instead of a scatter, so that it
/// fuses with the softmax's gradient.
void lower_nll_backward(Call& call) {
    at::Tensor grad = call.tensor("grad_output"), self = call.tensor("self"),
               target = call.tensor("target"), weight = call.tensor_or_none("weight");
    const std::int64_t reduction = call.integer("reduction");
    Emitter& e = call.emit();
    const SymInts sizes = self.sym_sizes().vec();
    const std::int64_t dim = self.dim() == 1 ? 0 : 1;
    ValueId t = e.convert(call.read(target), DType::I64);
    t = e.expand(self.dim() == 1 ? e.reshape(t, {1}) : e.unsqueeze(t, dim), sizes);
    ValueId hit = e.op(Prim::Eq, {t, e.iota(DType::I64, sizes, dim)});
    hit = e.op(Prim::LogicalAnd,
               {hit, e.compare(Prim::Ne, t, static_cast<double>(call.integer("ignore_index")))});
    ValueId g = e.widen(call.read(grad));
    DType wide = e.dtype(g);
    if (reduction == at::Reduction::Mean)
        g = e.div(g, e.convert(call.read(call.tensor("total_weight")), wide));
    if (reduction == at::Reduction::None && self.dim() > 1) g = e.unsqueeze(g, dim);
    if (e.sizes(g).size() != sizes.size()) g = e.reshape(g, {});
    g = e.op(Prim::Neg, {e.expand(g, sizes)});
    if (weight.defined()) {
        SymInts column(sizes.size() - at(dim), 1);
        column[0] = sizes[at(dim)];
        g = e.mul(g, e.expand(e.reshape(e.convert(call.read(weight), wide), column), sizes));
    }
    ValueId v = e.select(hit, g, e.number(g, 0));
    call.give(e.convert(v, to_dtype(self.scalar_type())), contiguous(sizes), self.device());
}

/// Losses of two operands: f(x, y) is the derivative for x, still to be multiplied by the gradient
/// and divided by the number of elements of a mean.
void lower_loss_backward(Call& call, const std::function<ValueId(Emitter&, ValueId, ValueId)>& f) {
    at::Tensor self = call.tensor("self");
    const bool mean = call.integer("reduction") == at::Reduction::Mean;
    const c10::SymInt n = self.sym_numel();
    lower_pointwise(call, {self, call.tensor("target"), call.tensor("grad_output")}, {},
                    [&](Emitter& e, auto v) {
                        ValueId d = f(e, v[0], v[1]);
                        return e.mul(mean ? e.div(d, n) : d, v[2]);
                    });
}
void lower_mse_backward(Call& call) {
    lower_loss_backward(call,
                        [](Emitter& e, ValueId x, ValueId y) { return e.mul(e.sub(x, y), 2.0); });
}
ValueId clipped(Emitter& e, ValueId v, double limit) {
    return e.op(Prim::Maximum, {e.op(Prim::Minimum, {v, e.number(v, limit)}), e.number(v, -limit)});
}
void lower_smooth_l1_backward(Call& call) {
    const double beta = call.real("beta");
    lower_loss_backward(call, [&](Emitter& e, ValueId x, ValueId y) {
        ValueId d = e.sub(x, y);
        return beta == 0 ? e.op(Prim::Sign, {d}) : e.div(clipped(e, d, beta), beta);
    });
}
void lower_huber_backward(Call& call) {
    const double delta = call.real("delta");
    lower_loss_backward(
        call, [&](Emitter& e, ValueId x, ValueId y) { return clipped(e, e.sub(x, y), delta); });
}

// ---- activations ----

void lower_activation_backward(Call& call, const char* second, const Formula& f) {
    const std::vector<at::Tensor> both{call.tensor("grad_output"), call.tensor(second)};
    if (c10::isIntegralType(common_type(both), true)) throw UserError("a gradient is no integer");
    lower_pointwise(call, both, {}, f);
}
void lower_hardswish_backward(Call& call) {
    lower_activation_backward(call, "self", [](Emitter& e, auto v) {
        ValueId middle = e.mul(v[0], e.add(e.div(v[1], 3.0), 0.5));
        ValueId right = e.select(e.compare(Prim::Lt, v[1], 3), middle, v[0]);
        return e.select(e.compare(Prim::Le, v[1], -3), e.number(v[0], 0), right);
    });
}
void lower_hardsigmoid_backward(Call& call) {
    lower_activation_backward(call, "self", [](Emitter& e, auto v) {
        ValueId inside =
            e.op(Prim::LogicalAnd, {e.compare(Prim::Gt, v[1], -3), e.compare(Prim::Lt, v[1], 3)});
        // Eager multiplies, by a sixth that is rounded to f32 in all types.
        return e.select(inside, e.mul(v[0], static_cast<double>(1.0f / 6.0f)), e.number(v[0], 0));
    });
}
void lower_elu_backward(Call& call) {
    const double scale = call.real("scale"), inner = call.real("input_scale"),
                 negative = call.real("alpha") * scale;
    const bool is_result = call.flag("is_result");
    lower_activation_backward(call, "self_or_result", [&](Emitter& e, auto v) {
        ValueId below = is_result ? e.mul(e.mul(v[0], inner), e.add(v[1], negative))
                                  : e.mul(e.mul(e.mul(v[0], inner), negative),
                                          e.op(Prim::Exp, {e.mul(v[1], inner)}));
        return e.select(e.compare(Prim::Le, v[1], 0), below, e.mul(v[0], scale));
    });
}
void lower_softplus_backward(Call& call) {
    const double beta = call.real("beta"), threshold = call.real("threshold");
    lower_activation_backward(call, "self", [&](Emitter& e, auto v) {
        ValueId scaled = e.mul(v[1], beta), z = e.op(Prim::Exp, {scaled});
        ValueId curved = e.div(e.mul(v[0], z), e.add(z, 1));
        return e.select(e.compare(Prim::Gt, scaled, threshold), v[0], curved);
    });
}
void lower_mish_backward(Call& call) {
    lower_activation_backward(call, "self", [](Emitter& e, auto v) {
        ValueId s = e.op(Prim::Sigmoid, {v[1]});
        ValueId t = e.op(Prim::Tanh, {e.op(Prim::Log1p, {e.op(Prim::Exp, {v[1]})})});
        ValueId slope = e.mul(e.mul(v[1], s), e.sub(e.number(t, 1), e.mul(t, t)));
        return e.mul(v[0], e.add(t, slope));
    });
}

/// Zeros around the gradient of a part: one dim's first element is `start`, `after` follow the
/// part.
void give_part_of_zeros(Call& call, ValueId part, std::size_t dim, const c10::SymInt& start,
                        const c10::SymInt& after) {
    const at::Tensor grad = call.tensor("grad_output");
    const SymInts sizes = call.sizes("input_sizes");
    SymInts low(sizes.size(), 0), high(sizes.size(), 0);
    low[dim] = start;
    high[dim] = after;
    const Scalar zero = cast_scalar(0, to_dtype(grad.scalar_type()));
    call.give(call.emit().pad(part, low, high, zero), contiguous(sizes), grad.device());
}
void lower_select_backward(Call& call) {
    const SymInts sizes = call.sizes("input_sizes");
    const auto rank = static_cast<std::int64_t>(sizes.size());
    const std::int64_t dim = wrap_dim(call.integer("dim"), rank);
    const c10::SymInt size = sizes[static_cast<std::size_t>(dim)];
    c10::SymInt index = call.size("index");
    if (index < 0) index += size;
    const ValueId part = call.emit().unsqueeze(call.read(call.tensor("grad_output")), dim);
    give_part_of_zeros(call, part, static_cast<std::size_t>(dim), index, size - index - 1);
}
void lower_slice_backward(Call& call) {
    if (call.size("step") != 1) throw NotSupported("a slice with a step, backwards");
    const SymInts sizes = call.sizes("input_sizes");
    const auto dim = static_cast<std::size_t>(
        wrap_dim(call.integer("dim"), static_cast<std::int64_t>(sizes.size())));
    c10::SymInt start = call.size("start");
    if (start < 0) start += sizes[dim];
    start = start.max(0).min(sizes[dim]);
    const at::Tensor grad = call.tensor("grad_output");
    give_part_of_zeros(call, call.read(grad), dim, start, sizes[dim] - start - grad.sym_size(dim));
}

}  // namespace

std::span<const LoweringEntry> backward_lowerings() {
    static constexpr LoweringEntry table[] = {
        {"convolution_backward", lower_convolution_backward},
        {"native_layer_norm_backward", lower_layer_norm_backward},
        {"native_group_norm_backward", lower_group_norm_backward},
        {"native_batch_norm_backward", lower_batch_norm_backward},
        {"batch_norm_backward", lower_batch_norm_backward},
        {"cudnn_batch_norm_backward", lower_batch_norm_backward},
        {"nll_loss_backward", lower_nll_backward},
        {"nll_loss2d_backward", lower_nll_backward},
        {"select_backward", lower_select_backward},
        {"slice_backward", lower_slice_backward},
        {"mse_loss_backward", lower_mse_backward},
        {"smooth_l1_loss_backward", lower_smooth_l1_backward},
        {"huber_loss_backward", lower_huber_backward},
        {"hardswish_backward", lower_hardswish_backward},
        {"hardsigmoid_backward", lower_hardsigmoid_backward},
        {"elu_backward", lower_elu_backward},
        {"softplus_backward", lower_softplus_backward},
        {"mish_backward", lower_mish_backward},
    };
    return table;
}

}  // namespace ingot::trace
