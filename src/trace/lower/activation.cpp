// Activations: formulas of several prims, computed in f32 for reduced floats and rounded once, as
// eager's kernels do.
#include "ir/tensor.h"
#include "trace/lower/formulas.h"
#include "trace/lower/promote.h"

namespace ingot::trace {

namespace {

constexpr double kSqrtHalf = 0.70710678118654752440;
constexpr double kSqrt2OverPi = 0.79788456080286535588;

void unary(Call& call, const Formula& f) { lower_pointwise(call, {operand(call, "self")}, {}, f); }

void lower_gelu(Call& call) {
    const std::string approximate = call.text("approximate");
    const bool tanh = approximate == "tanh";
    if (!tanh && approximate != "none") throw UserError("gelu: approximate is none or tanh");
    unary(call, [&](Emitter& e, auto v) {
        ValueId x = v[0];
        if (!tanh) return gelu(e, x);
        ValueId cube = e.mul(e.mul(x, x), x);
        ValueId inner = e.mul(e.add(x, e.mul(cube, 0.044715)), kSqrt2OverPi);
        return e.mul(e.mul(x, 0.5), e.add(e.op(Prim::Tanh, {inner}), 1));
    });
}
void lower_silu(Call& call) {
    unary(call, [](Emitter& e, auto v) {
        ValueId x = v[0];
        return e.div(x, e.add(e.op(Prim::Exp, {e.op(Prim::Neg, {x})}), 1));
    });
}
void lower_hardtanh(Call& call) {
    at::Tensor low = wrapped(call.number("min_val")), high = wrapped(call.number("max_val"));
    c10::ScalarType type = call.tensor("self").scalar_type();
    check_fits(call.number("min_val"), type);
    check_fits(call.number("max_val"), type);
    if (type == c10::kByte && (low.item().toDouble() < 0 || high.item().toDouble() < 0))
        throw UserError("cannot do hardtanh on an unsigned type with negative limits");
    unary(call, [&](Emitter& e, auto v) {
        auto bound = [&](const at::Tensor& t) {
            return e.full(e.dtype(v[0]), e.sizes(v[0]), cast_scalar(t.item(), to_dtype(type)));
        };
        return e.op(Prim::Clamp, {v[0], bound(low), bound(high)});
    });
}
void lower_relu6(Call& call) {
    unary(call, [](Emitter& e, auto v) {
        return e.op(Prim::Clamp, {v[0], e.number(v[0], 0), e.number(v[0], 6)});
    });
}
ValueId ramp6(Emitter& e, ValueId x) {
    ValueId y = e.add(x, 3);
    return e.op(Prim::Clamp, {y, e.number(y, 0), e.number(y, 6)});
}
void lower_hardsigmoid(Call& call) {
    unary(call, [](Emitter& e, auto v) { return e.div(ramp6(e, v[0]), 6); });
}
void lower_hardswish(Call& call) {
    unary(call, [](Emitter& e, auto v) { return e.div(e.mul(v[0], ramp6(e, v[0])), 6); });
}
void lower_leaky_relu(Call& call) {
    double slope = call.real_or("negative_slope", 0.01);
    unary(call, [&](Emitter& e, auto v) {
        return e.select(e.compare(Prim::Gt, v[0], 0), v[0], e.mul(v[0], slope));
    });
}
/// elu, selu and celu share one kernel: scale * (x > 0 ? x : alpha * expm1(x * input_scale)).
void elu(Call& call, double alpha, double scale, double input_scale) {
    unary(call, [&](Emitter& e, auto v) {
        ValueId x = v[0];
        ValueId low = e.mul(e.op(Prim::Expm1, {e.mul(x, input_scale)}), alpha * scale);
        return e.select(e.compare(Prim::Le, x, 0), low, e.mul(x, scale));
    });
}
void lower_elu(Call& call) {
    elu(call, call.real_or("alpha", 1), call.real_or("scale", 1), call.real_or("input_scale", 1));
}
void lower_selu(Call& call) {
    elu(call, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1);
}
void lower_celu(Call& call) {
    double alpha = call.real_or("alpha", 1);
    if (alpha == 0) throw UserError("ZeroDivisionError: alpha cannot be 0 for CELU");
    elu(call, alpha, 1, 1 / alpha);
}
void lower_softplus(Call& call) {
    double beta = call.real_or("beta", 1), threshold = call.real_or("threshold", 20);
    unary(call, [&](Emitter& e, auto v) {
        ValueId scaled = e.mul(v[0], beta);
        ValueId soft = e.div(e.op(Prim::Log1p, {e.op(Prim::Exp, {scaled})}), beta);
        return e.select(e.compare(Prim::Gt, scaled, threshold), v[0], soft);
    });
}
/// On a GPU tanh(log(1 + exp(x))) as n / (n + 2) with n = exp(x) (exp(x) + 2): nothing cancels, and
/// a function is left of three. It is 1 long before n is infinite.
ValueId rational_mish(Emitter& e, ValueId x) {
    const double one = e.dtype(x) == DType::F64 ? 40 : 20;
    ValueId exp = e.op(Prim::Exp, {e.op(Prim::Minimum, {x, e.number(x, one)})});
    ValueId n = e.mul(exp, e.add(exp, e.number(exp, 2)));
    return e.mul(x, e.div(n, e.add(n, e.number(n, 2))));
}
void lower_mish(Call& call) {
    const bool gpu = call.tensor("self").is_cuda();
    unary(call, [gpu](Emitter& e, auto v) {
        if (gpu) return rational_mish(e, v[0]);
        ValueId soft = e.op(Prim::Log1p, {e.op(Prim::Exp, {v[0]})});
        return e.mul(v[0], e.op(Prim::Tanh, {soft}));
    });
}
ValueId log_sigmoid(Emitter& e, ValueId x) {
    ValueId low = e.op(Prim::Minimum, {x, e.number(x, 0)});
    ValueId t = e.op(Prim::Exp, {e.op(Prim::Neg, {e.op(Prim::Abs, {x})})});
    return e.sub(low, e.op(Prim::Log1p, {t}));
}
void lower_log_sigmoid(Call& call) {
    unary(call, [](Emitter& e, auto v) { return log_sigmoid(e, v[0]); });
}
/// The second result is a buffer for the backward pass: exp(-|x|) on CPU.
void lower_log_sigmoid_forward(Call& call) {
    lower_log_sigmoid(call);
    unary(call, [](Emitter& e, auto v) {
        return e.op(Prim::Exp, {e.op(Prim::Neg, {e.op(Prim::Abs, {v[0]})})});
    });
    // Processors lay both out in rows, GPUs the buffer.
    for (Call::Result& r : call.results())
        if (r.device.is_cpu() || &r == &call.results().back())
            r.strides = contiguous(call.emit().sizes(r.fresh));
}
void lower_threshold(Call& call) {
    double threshold = call.real("threshold"), value = call.real("value");
    const c10::ScalarType type = call.tensor("self").scalar_type();
    check_fits(call.number("threshold"), c10::isReducedFloatingType(type) ? c10::kFloat : type);
    check_fits(call.number("value"), type);
    unary(call, [&](Emitter& e, auto v) {
        return e.select(e.compare(Prim::Le, v[0], threshold), e.number(v[0], value), v[0]);
    });
}
/// The half width of a shrinking function's gap, which processors have in the operand's type.
double rounded_lambda(Call& call, const at::Tensor& self) {
    const double lambda = call.real_or("lambd", 0.5);
    return self.is_cpu() ? round_float(lambda, to_dtype(self.scalar_type())) : lambda;
}
void lower_hardshrink(Call& call) {
    const double lambda = rounded_lambda(call, call.tensor("self"));
    unary(call, [&](Emitter& e, auto v) {
        ValueId inside = e.op(Prim::LogicalAnd, {e.compare(Prim::Ge, v[0], -lambda),
                                                 e.compare(Prim::Le, v[0], lambda)});
        return e.select(inside, e.number(v[0], 0), v[0]);
    });
}
void lower_softshrink(Call& call) {
    const double lambda = call.real_or("lambd", 0.5);
    if (!(lambda >= 0)) throw UserError("softshrink: lambda is not negative");
    check_fits(lambda, call.tensor("self").scalar_type());
    unary(call, [&](Emitter& e, auto v) {
        ValueId x = v[0];
        ValueId low = e.select(e.compare(Prim::Lt, x, -lambda), e.add(x, lambda), e.mul(x, 0));
        return e.select(e.compare(Prim::Gt, x, lambda), e.sub(x, lambda), low);
    });
}
void lower_prelu(Call& call) {
    lower_pointwise(call, {call.tensor("self"), call.tensor("weight")}, {}, [](Emitter& e, auto v) {
        return e.select(e.compare(Prim::Gt, v[0], 0), v[0], e.mul(v[0], v[1]));
    });
}
void lower_glu(Call& call) {
    at::Tensor self = call.tensor("self");
    std::int64_t dim = wrap_dim(call.integer_or("dim", -1), self.dim());
    Emitter& e = call.emit();
    const c10::SymInt n = self.sym_size(dim);
    if (n % 2 != 0) throw UserError("glu needs an even size");
    ValueId x = e.widen(call.read(self));
    ValueId a = e.slice(x, dim, 0, n / 2), b = e.slice(x, dim, n / 2, n);
    Layout half = layout_of(self);
    half.sizes[static_cast<std::size_t>(dim)] = n / 2;
    ValueId y = e.convert(e.mul(a, e.op(Prim::Sigmoid, {b})), to_dtype(self.scalar_type()));
    std::vector<Layout> both{half, half};
    call.give(y, iterator_strides(half.sizes, both), self.device());
}

/// Gradients of activations: (grad, x or result) to gradient.
void backward(Call& call, const char* second, const Formula& f) {
    const std::vector<at::Tensor> both{call.tensor("grad_output"), call.tensor(second)};
    if (c10::isIntegralType(common_type(both), true)) throw UserError("a gradient is no integer");
    lower_pointwise(call, both, {}, f);
}
/// The conjugate, where there is one: a gradient is multiplied by the conjugate of the derivative.
ValueId conjugate(Emitter& e, ValueId v) {
    return is_complex(e.dtype(v)) ? e.op(Prim::Conj, {v}) : v;
}
void lower_threshold_backward(Call& call) {
    double threshold = call.real("threshold");
    backward(call, "self", [&](Emitter& e, auto v) {
        return e.select(e.compare(Prim::Le, v[1], threshold), e.number(v[0], 0), v[0]);
    });
}
void lower_sigmoid_backward(Call& call) {
    backward(call, "output", [](Emitter& e, auto v) {
        return e.mul(v[0], conjugate(e, e.mul(e.sub(e.number(v[1], 1), v[1]), v[1])));
    });
}
void lower_tanh_backward(Call& call) {
    backward(call, "output", [](Emitter& e, auto v) {
        return e.mul(v[0], conjugate(e, e.sub(e.number(v[1], 1), e.mul(v[1], v[1]))));
    });
}
void lower_gelu_backward(Call& call) {
    bool tanh = call.text("approximate") == "tanh";
    backward(call, "self", [&](Emitter& e, auto v) {
        ValueId x = v[1];
        if (!tanh) {
            ValueId cdf = e.mul(e.add(e.op(Prim::Erf, {e.mul(x, kSqrtHalf)}), 1), 0.5);
            ValueId pdf =
                e.mul(e.op(Prim::Exp, {e.mul(e.mul(x, x), -0.5)}), 0.39894228040143267794);
            return e.mul(v[0], e.add(cdf, e.mul(x, pdf)));
        }
        ValueId cube = e.mul(e.mul(x, x), x);
        ValueId inner = e.mul(e.add(x, e.mul(cube, 0.044715)), kSqrt2OverPi);
        ValueId t = e.op(Prim::Tanh, {inner});
        ValueId left = e.mul(x, 0.5), right = e.add(t, 1);
        ValueId left_d = e.mul(right, 0.5);
        ValueId tanh_d = e.sub(e.number(t, 1), e.mul(t, t));
        ValueId inner_d = e.mul(e.add(e.mul(e.mul(x, x), 3 * 0.044715), 1), kSqrt2OverPi);
        ValueId right_d = e.mul(e.mul(left, tanh_d), inner_d);
        return e.mul(v[0], e.add(left_d, right_d));
    });
}
void lower_silu_backward(Call& call) {
    backward(call, "self", [](Emitter& e, auto v) {
        ValueId s = e.op(Prim::Sigmoid, {v[1]});
        ValueId inner = e.add(e.mul(v[1], e.sub(e.number(s, 1), s)), 1);
        return e.mul(e.mul(v[0], s), inner);
    });
}
void lower_leaky_relu_backward(Call& call) {
    double slope = call.real("negative_slope");
    backward(call, "self", [&](Emitter& e, auto v) {
        return e.select(e.compare(Prim::Gt, v[1], 0), v[0], e.mul(v[0], slope));
    });
}
void lower_hardtanh_backward(Call& call) {
    double low = call.real("min_val"), high = call.real("max_val");
    backward(call, "self", [&](Emitter& e, auto v) {
        // No gradient where x is NaN: eager's vectors say so (what is left over of a row does not).
        ValueId inside = e.op(Prim::LogicalAnd,
                              {e.compare(Prim::Gt, v[1], low), e.compare(Prim::Lt, v[1], high)});
        return e.select(inside, v[0], e.number(v[0], 0));
    });
}

}  // namespace

ValueId gelu(Emitter& e, ValueId x) {
    ValueId erf = e.op(Prim::Erf, {e.mul(x, kSqrtHalf)});
    return e.mul(e.mul(x, 0.5), e.add(erf, 1));
}

std::span<const LoweringEntry> activation_lowerings() {
    static constexpr LoweringEntry table[] = {
        {"gelu", lower_gelu},
        {"silu", lower_silu},
        {"hardtanh", lower_hardtanh},
        {"relu6", lower_relu6},
        {"hardsigmoid", lower_hardsigmoid},
        {"hardswish", lower_hardswish},
        {"leaky_relu", lower_leaky_relu},
        {"elu", lower_elu},
        {"selu", lower_selu},
        {"celu", lower_celu},
        {"softplus", lower_softplus},
        {"mish", lower_mish},
        {"log_sigmoid", lower_log_sigmoid},
        {"log_sigmoid_forward", lower_log_sigmoid_forward},
        {"threshold", lower_threshold},
        {"hardshrink", lower_hardshrink},
        {"softshrink", lower_softshrink},
        {"_prelu_kernel", lower_prelu},
        {"glu", lower_glu},
        {"threshold_backward", lower_threshold_backward},
        {"sigmoid_backward", lower_sigmoid_backward},
        {"tanh_backward", lower_tanh_backward},
        {"gelu_backward", lower_gelu_backward},
        {"silu_backward", lower_silu_backward},
        {"leaky_relu_backward", lower_leaky_relu_backward},
        {"hardtanh_backward", lower_hardtanh_backward},
    };
    return table;
}

}  // namespace ingot::trace
