// Unary and binary pointwise operators that are one prim (or nearly).
#include <cmath>

#include "ir/tensor.h"
#include "trace/lower/promote.h"

namespace ingot::trace {

namespace {

/// The first argument, whatever its name (self, x).
at::Tensor first(Call& call) { return call.at(0).toTensor(); }
/// Argument `i` as a tensor; a number becomes a wrapped number.
at::Tensor nth(Call& call, std::size_t i) {
    const c10::IValue& v = call.at(i);
    return v.isTensor() ? v.toTensor() : wrapped(v.toScalar());
}

/// Functions of floats: integers become the default float type first.
template <Prim prim>
void unary_float(Call& call) {
    lower_pointwise(call, {first(call)}, {.int_to_float = true, .wide = false},
                    [](Emitter& e, auto v) { return e.op(prim, {v[0]}); });
}
/// The operand's own type in and out.
template <Prim prim>
void unary_same(Call& call) {
    lower_pointwise(call, {first(call)}, {.wide = false},
                    [](Emitter& e, auto v) { return e.op(prim, {v[0]}); });
}
/// Rounding functions leave integers alone.
template <Prim prim>
void unary_rounding(Call& call) {
    lower_pointwise(call, {first(call)}, {.wide = false}, [](Emitter& e, auto v) {
        return is_integral(e.dtype(v[0])) ? v[0] : e.op(prim, {v[0]});
    });
}
template <Prim prim>
void unary_bool(Call& call) {
    lower_pointwise(call, {first(call)}, {.wide = false, .boolean = true}, [](Emitter& e, auto v) {
        DType t = e.dtype(v[0]);
        if ((prim == Prim::IsNan || prim == Prim::IsInf) && is_integral(t))
            return e.full_like(v[0], DType::Bool, 0);
        if (prim == Prim::IsFinite && is_integral(t)) return e.full_like(v[0], DType::Bool, 1);
        return e.op(prim, {v[0]});
    });
}
template <int sign>
void is_signed_infinity(Call& call) {
    lower_pointwise(
        call, {operand(call, "self")}, {.wide = false, .boolean = true}, [](Emitter& e, auto v) {
            if (is_integral(e.dtype(v[0]))) return e.full_like(v[0], DType::Bool, 0);
            return e.compare(Prim::Eq, v[0], sign * std::numeric_limits<double>::infinity());
        });
}

template <Prim prim>
void binary_same(Call& call) {
    lower_pointwise(call, {operand(call, "self"), operand(call, "other")}, {},
                    [](Emitter& e, auto v) { return e.op(prim, {v[0], v[1]}); });
}
void lower_mul(Call& call) {
    // mul_(Tensor, Scalar) is a product whose first operand is the number.
    const bool swapped = call.overload() == "Scalar" && call.target.defined();
    lower_pointwise(call, {operand(call, "self"), operand(call, "other")},
                    {.exact = swapped ? kNoOperand : 1},
                    [](Emitter& e, auto v) { return e.mul(v[0], v[1]); });
}
void lower_floor_divide(Call& call) {
    lower_pointwise(call, {operand(call, "self"), operand(call, "other")}, {.exact = 1},
                    [](Emitter& e, auto v) { return e.op(Prim::FloorDiv, {v[0], v[1]}); });
}
/// Integers narrower than 32 bits are computed as such, so that the result alone overflows.
void lower_lcm(Call& call) {
    lower_pointwise(
        call, {operand(call, "self"), operand(call, "other")}, {}, [](Emitter& e, auto v) {
            const DType type = e.dtype(v[0]);
            if (!is_signed_int(type)) return e.op(Prim::Lcm, {v[0], v[1]});
            const DType wide = type == DType::I64 ? type : DType::I32;
            const ValueId y = e.op(Prim::Lcm, {e.convert(v[0], wide), e.convert(v[1], wide)});
            return e.convert(e.op(Prim::Abs, {y}), type);
        });
}
template <Prim prim>
void binary_float(Call& call) {
    lower_pointwise(call, {operand(call, "self"), operand(call, "other")}, {.int_to_float = true},
                    [](Emitter& e, auto v) { return e.op(prim, {v[0], v[1]}); });
}
/// Comparisons read both operands in the common type, with no wider intermediate.
template <Prim prim>
void compare(Call& call) {
    lower_pointwise(call, {operand(call, "self"), operand(call, "other")},
                    {.wide = false, .boolean = true},
                    [](Emitter& e, auto v) { return e.op(prim, {v[0], v[1]}); });
}

/// `v` times alpha, which processors have in the operands' own type.
ValueId scaled(Call& call, ValueId v, const c10::Scalar& alpha, c10::ScalarType type,
               bool on_processor) {
    Emitter& e = call.emit();
    if (!on_processor || e.dtype(v) == to_dtype(type))
        return e.mul(v, spread_number(call, alpha, v));
    return e.mul(v, e.widen(spread_number(call, alpha, e.convert(v, to_dtype(type)))));
}
/// add, sub and rsub.
void add_scaled(Call& call, Prim prim, bool reversed) {
    at::Tensor a = operand(call, "self"), b = operand(call, "other");
    if (reversed) std::swap(a, b);
    c10::Scalar alpha = call.scalar_or("alpha", 1);
    const c10::ScalarType type = common_type(std::vector{a, b});
    check_alpha(alpha, type);
    lower_pointwise(call, {a, b}, {}, [&](Emitter& e, auto v) {
        ValueId right = v[1];
        bool one = !alpha.isSymbolic() && !alpha.isComplex() && alpha.toDouble() == 1;
        if (!one) right = scaled(call, right, alpha, type, a.is_cpu() && b.is_cpu());
        if (prim == Prim::Sub && e.dtype(v[0]) == DType::Bool)
            throw UserError("subtraction of bool tensors is not supported");
        return e.op(prim, {v[0], right});
    });
}
void lower_add(Call& call) { add_scaled(call, Prim::Add, false); }
void subtract(Call& call, bool swapped) {
    for (const char* name : {"self", "other"})
        if (operand(call, name).scalar_type() == c10::kBool)
            throw NotSupported("eager subtracts no bools");
    add_scaled(call, Prim::Sub, swapped);
}
void lower_sub(Call& call) { subtract(call, false); }
void lower_rsub(Call& call) { subtract(call, true); }

void lower_div(Call& call) {
    // By a size, as the gradient of a mean divides: no number of its own.
    const c10::IValue& by = call.at("other");
    if (by.isScalar() && by.toScalar().isSymbolic() && by.toScalar().isIntegral(false) &&
        !call.given("rounding_mode") && call.tensor("self").is_floating_point()) {
        const c10::SymInt count = by.toScalar().toSymInt();
        return lower_pointwise(call, {operand(call, "self")}, {},
                               [&](Emitter& e, auto v) { return e.div(v[0], count); });
    }
    std::vector<at::Tensor> operands{operand(call, "self"), operand(call, "other")};
    if (!call.given("rounding_mode")) {
        lower_pointwise(call, operands, {.int_to_float = true, .exact = 1},
                        [](Emitter& e, auto v) { return e.div(v[0], v[1]); });
        return;
    }
    bool floor = call.text("rounding_mode") == "floor";
    // Floor division of reduced floats is done on their own type, truncation in f32.
    lower_pointwise(call, operands, {.exact = 1}, [&](Emitter& e, auto v) {
        return e.op(floor ? Prim::FloorDiv : Prim::TruncDiv, {v[0], v[1]});
    });
}

/// pow with a number: eager computes the small exponents by multiplication and square roots.
void lower_pow(Call& call) {
    at::Tensor self = operand(call, "self"), exponent = operand(call, "exponent");
    if (!call.at("exponent").isTensor())  // its value decides how it is computed
        exponent = wrapped(call.number("exponent"));
    bool number = is_wrapped(exponent) && !call.at("exponent").isTensor();
    c10::ScalarType type = common_type(std::vector<at::Tensor>{self, exponent});
    if (number) check_fits(exponent.item(), type);
    if (number && !c10::isIntegralType(type, true) && !exponent.is_complex()) {
        Operands operands = gather_operands({self}, type);
        DType common = to_dtype(type);
        const double p = round_float(exponent.item().toDouble(), common);  // 2.001 may be 2
        ValueId x = operand_values(call, operands, common, common)[0];
        Emitter& e = call.emit();
        std::optional<ValueId> y;
        if (p == 0) y = e.number(x, 1);
        if (p == 1) y = x;
        if (p == 2) y = e.mul(x, x);
        if (p == 3) y = e.mul(e.mul(x, x), x);
        if (p == -1) y = e.op(Prim::Reciprocal, {x});
        if (p == -2) y = e.op(Prim::Reciprocal, {e.mul(x, x)});
        if (p == 0.5) y = e.op(Prim::Sqrt, {x});
        if (p == -0.5) y = e.op(Prim::Rsqrt, {x});
        if (y) {
            call.give(*y, operands.strides, operands.device);
            return;
        }
    }
    if (number && c10::isIntegralType(type, true) && exponent.item().toLong() < 0)
        throw UserError("Integers to negative integer powers are not allowed.");
    // A tensor to the power of a number has one operand; a number to that of a tensor has two.
    lower_pointwise(call, {self, exponent}, {.numbers_aside = call.at("self").isTensor()},
                    [](Emitter& e, auto v) { return e.op(Prim::Pow, {v[0], v[1]}); });
}

void lower_sign(Call& call) {
    lower_pointwise(call, {operand(call, "self")}, {.wide = false}, [](Emitter& e, auto v) {
        return e.dtype(v[0]) == DType::Bool ? v[0] : e.op(Prim::Sign, {v[0]});
    });
}
/// The operand itself, as a composite operator returns it.
void lower_positive(Call& call) {
    const at::Tensor self = call.tensor("self");
    if (self.scalar_type() == c10::kBool) throw NotSupported("a plus in front of truth values");
    call.give(self);
}
void lower_reciprocal(Call& call) { unary_float<Prim::Reciprocal>(call); }
void lower_square(Call& call) {
    lower_pointwise(call, {operand(call, "self")}, {.wide = false},
                    [](Emitter& e, auto v) { return e.mul(v[0], v[0]); });
}
void lower_round(Call& call) {
    std::int64_t decimals = call.integer_or("decimals", 0);
    lower_pointwise(call, {operand(call, "self")}, {.wide = false}, [&](Emitter& e, auto v) {
        if (is_integral(e.dtype(v[0]))) return v[0];
        if (decimals == 0) return e.op(Prim::Round, {v[0]});
        return e.op(Prim::Round2, {v[0]}, {{"decimals", decimals}});
    });
}
void lower_abs(Call& call) {
    at::Tensor self = call.tensor("self");
    if (self.is_complex()) {  // eager allocates like the operand: sizes of one keep their strides
        ValueId v = call.emit().op(Prim::Abs, {call.read(self)});
        return call.give(v, preserved_strides(layout_of(self)), self.device());
    }
    lower_pointwise(call, {self}, {.wide = false}, [](Emitter& e, auto v) {
        return is_unsigned_int(e.dtype(v[0])) ? v[0] : e.op(Prim::Abs, {v[0]});
    });
}
void lower_angle(Call& call) {
    lower_pointwise(call, {operand(call, "self")}, {.int_to_float = true, .wide = false},
                    [](Emitter& e, auto v) { return e.op(Prim::Angle, {v[0]}); });
}
void lower_conj_physical(Call& call) {
    lower_pointwise(call, {operand(call, "self")}, {.wide = false}, [](Emitter& e, auto v) {
        return is_complex(e.dtype(v[0])) ? e.op(Prim::Conj, {v[0]}) : v[0];
    });
}
/// Gives back what has nothing to conjugate, as composite operators do.
void lower_conj_or_self(Call& call) {
    const at::Tensor self = call.tensor("self");
    if (self.is_complex() || call.target.defined()) return lower_conj_physical(call);
    call.give(self);
}
void lower_polygamma(Call& call) {
    std::int64_t n = call.integer("n");
    lower_pointwise(
        call, {operand(call, "self")}, {.int_to_float = true, .wide = false},
        [&](Emitter& e, auto v) { return e.op(Prim::Polygamma, {v[0]}, {{"order", n}}); });
}
void lower_logit(Call& call) {
    bool clamps = call.given("eps");
    double eps = call.real_or("eps", 0);
    const c10::ScalarType type = call.tensor("self").scalar_type();
    if (clamps && call.tensor("self").is_cpu()) {
        check_fits(eps, float_type(type));
        if (c10::isReducedFloatingType(type)) eps = round_float(eps, to_dtype(type));
    }
    lower_pointwise(call, {operand(call, "self")}, {.int_to_float = true}, [&](Emitter& e, auto v) {
        ValueId x = v[0];
        if (clamps) {  // the lower bound first: it counts where eps is above a half
            const ValueId low = e.number(x, eps), high = e.number(x, 1 - eps);
            const ValueId below = e.op(Prim::Lt, {x, low}), above = e.op(Prim::Gt, {x, high});
            x = e.select(below, low, e.select(above, high, x));
        }
        return e.op(Prim::Log, {e.div(x, e.sub(e.number(x, 1), x))});
    });
}
void lower_nan_to_num(Call& call) {
    double limits[] = {0, 0, 0};
    at::Tensor self = operand(call, "self");
    bool has_pos = call.given("posinf"), has_neg = call.given("neginf");
    limits[0] = call.real_or("nan", 0);
    limits[1] = call.real_or("posinf", 0);
    limits[2] = call.real_or("neginf", 0);
    lower_pointwise(call, {self}, {.wide = false}, [&](Emitter& e, auto v) {
        ValueId x = v[0];
        DType t = e.dtype(x);
        if (is_integral(t)) return x;
        if (is_complex(t)) throw NotSupported("nan_to_num of complex numbers");
        double largest = t == DType::F64    ? std::numeric_limits<double>::max()
                         : t == DType::F32  ? double(std::numeric_limits<float>::max())
                         : t == DType::BF16 ? 3.3895313892515355e38
                                            : 65504.0;
        double inf = std::numeric_limits<double>::infinity();
        ValueId y = e.select(e.op(Prim::IsNan, {x}), e.number(x, limits[0]), x);
        y = e.select(e.compare(Prim::Eq, x, inf), e.number(x, has_pos ? limits[1] : largest), y);
        return e.select(e.compare(Prim::Eq, x, -inf), e.number(x, has_neg ? limits[2] : -largest),
                        y);
    });
}
template <Prim prim>
void logical(Call& call) {
    std::vector<at::Tensor> both{operand(call, "self"), operand(call, "other")};
    const c10::ScalarType type = common_type(both);
    Operands operands = gather_operands(std::move(both), type);
    std::vector<ValueId> values;
    Emitter& e = call.emit();
    for (const at::Tensor& t : operands.tensors) {
        ValueId v = value_as(call, t, to_dtype(t.scalar_type()));
        values.push_back(e.expand(e.convert(v, DType::Bool), operands.shape));
    }
    call.give(e.op(prim, values), operands.strides, operands.device);
}
/// PyTorch's versions and devices differ in what a bound that is a plain NaN does: its kernel is
/// asked. On GPUs, where it lets the number pass, one that may become NaN is fixed.
void refuse_nan(const Call& call, std::string_view bound) {
    const c10::IValue& v = call.at(bound);
    if (v.isTensor() || v.isNone()) return;
    const c10::Scalar number = v.toScalar();
    if (!number.isFloatingPoint()) return;
    if (number.isSymbolic() && !call.tensor("self").is_cuda()) return;
    if (std::isnan(number.toSymFloat().guard_float(__FILE__, __LINE__)))
        throw NotSupported("a bound that is NaN");
}
/// A bound that is a number is made one of the result's type; tensors are not asked whether they
/// fit.
void check_bounds(const Call& call) {
    std::vector<at::Tensor> all;
    for (const char* name : {"self", "min", "max"})
        if (call.find(name) != nullptr && call.given(name)) all.push_back(operand(call, name));
    for (const char* name : {"min", "max"})
        if (call.find(name) != nullptr && call.given(name) && call.at(name).isScalar())
            check_fits(call.at(name).toScalar(), common_type(all));
}
void lower_clamp_min(Call& call) {
    check_bounds(call);
    refuse_nan(call, "min");
    lower_pointwise(call, {operand(call, "self"), operand(call, "min")}, {.numbers_aside = true},
                    [](Emitter& e, auto v) { return e.op(Prim::Maximum, {v[0], v[1]}); });
}
void lower_clamp_max(Call& call) {
    check_bounds(call);
    refuse_nan(call, "max");
    lower_pointwise(call, {operand(call, "self"), operand(call, "max")}, {.numbers_aside = true},
                    [](Emitter& e, auto v) { return e.op(Prim::Minimum, {v[0], v[1]}); });
}
void lower_clamp(Call& call) {
    bool low = call.given("min"), high = call.given("max");
    if (low && !high) return lower_clamp_min(call);
    if (high && !low) return lower_clamp_max(call);
    if (!low) throw UserError("clamp needs a bound");
    check_bounds(call);
    refuse_nan(call, "min");
    refuse_nan(call, "max");
    lower_pointwise(call, {operand(call, "self"), operand(call, "min"), operand(call, "max")},
                    {.numbers_aside = true},
                    [](Emitter& e, auto v) { return e.op(Prim::Clamp, {v[0], v[1], v[2]}); });
}
void lower_logaddexp(Call& call, bool base2) {
    lower_pointwise(call, {operand(call, "self"), operand(call, "other")}, {},
                    [&](Emitter& e, auto v) {
                        if (!is_float(e.dtype(v[0]))) throw NotSupported("logaddexp of integers");
                        ValueId m = e.op(Prim::Maximum, {v[0], v[1]});
                        ValueId d = e.op(Prim::Abs, {e.sub(v[0], v[1])});
                        ValueId t = e.op(base2 ? Prim::Exp2 : Prim::Exp, {e.op(Prim::Neg, {d})});
                        ValueId l = e.op(Prim::Log1p, {t});
                        if (base2) l = e.mul(l, 1.4426950408889634);
                        // Two equal infinities: their difference is NaN, the result is the infinity
                        // itself.
                        ValueId inf = e.op(Prim::IsInf, {v[0]});
                        ValueId both = e.op(Prim::LogicalAnd, {inf, e.op(Prim::Eq, {v[0], v[1]})});
                        return e.select(both, v[0], e.add(m, l));
                    });
}
void lower_logaddexp_e(Call& call) { lower_logaddexp(call, false); }
void lower_logaddexp_2(Call& call) { lower_logaddexp(call, true); }
/// Polynomials of degree n: (x, n).
template <Prim prim>
void polynomial(Call& call) {
    lower_pointwise(call, {nth(call, 0), nth(call, 1)}, {.int_to_float = true},
                    [](Emitter& e, auto v) { return e.op(prim, {v[0], v[1]}); });
}
void lower_entr(Call& call) {
    lower_pointwise(call, {first(call)}, {.int_to_float = true}, [](Emitter& e, auto v) {
        ValueId x = v[0];
        ValueId y = e.mul(e.op(Prim::Neg, {x}), e.op(Prim::Log, {x}));
        y = e.select(e.compare(Prim::Eq, x, 0), e.number(x, 0), y);
        y = e.select(e.compare(Prim::Lt, x, 0),
                     e.number(x, -std::numeric_limits<double>::infinity()), y);
        return e.select(e.op(Prim::IsNan, {x}), x, y);
    });
}
void lower_heaviside(Call& call) {
    if (call.tensor("self").scalar_type() != call.tensor("values").scalar_type())
        throw UserError("heaviside of tensors of two types");
    lower_pointwise(call, {operand(call, "self"), operand(call, "values")}, {.wide = false},
                    [](Emitter& e, auto v) {
                        ValueId step = e.convert(e.compare(Prim::Gt, v[0], 0), e.dtype(v[0]));
                        return e.select(e.compare(Prim::Eq, v[0], 0), v[1], step);
                    });
}
void lower_deg2rad(Call& call) {
    lower_pointwise(call, {operand(call, "self")}, {.int_to_float = true},
                    [](Emitter& e, auto v) { return e.mul(v[0], 0.017453292519943295); });
}
void lower_rad2deg(Call& call) {
    lower_pointwise(call, {operand(call, "self")}, {.int_to_float = true},
                    [](Emitter& e, auto v) { return e.mul(v[0], 57.29577951308232); });
}
void lower_complex(Call& call) {
    const at::Tensor real = call.tensor("real"), imag = call.tensor("imag");
    if (!real.is_floating_point() || real.scalar_type() != imag.scalar_type())
        throw UserError("complex: two float tensors of one type");
    lower_pointwise(call, {real, imag}, {.wide = false},
                    [](Emitter& e, auto v) { return e.op(Prim::Complex, {v[0], v[1]}); });
}

}  // namespace

std::span<const LoweringEntry> pointwise_lowerings() {
    static constexpr LoweringEntry table[] = {
        {"acos", unary_float<Prim::Acos>},
        {"acosh", unary_float<Prim::Acosh>},
        {"asin", unary_float<Prim::Asin>},
        {"asinh", unary_float<Prim::Asinh>},
        {"atan", unary_float<Prim::Atan>},
        {"atanh", unary_float<Prim::Atanh>},
        {"cos", unary_float<Prim::Cos>},
        {"cosh", unary_float<Prim::Cosh>},
        {"digamma", unary_float<Prim::Digamma>},
        {"erf", unary_float<Prim::Erf>},
        {"erfc", unary_float<Prim::Erfc>},
        {"erfinv", unary_float<Prim::Erfinv>},
        {"exp", unary_float<Prim::Exp>},
        {"exp2", unary_float<Prim::Exp2>},
        {"expm1", unary_float<Prim::Expm1>},
        {"i0", unary_float<Prim::BesselI0>},
        {"lgamma", unary_float<Prim::Lgamma>},
        {"log", unary_float<Prim::Log>},
        {"log10", unary_float<Prim::Log10>},
        {"log1p", unary_float<Prim::Log1p>},
        {"log2", unary_float<Prim::Log2>},
        {"reciprocal", lower_reciprocal},
        {"rsqrt", unary_float<Prim::Rsqrt>},
        {"sigmoid", unary_float<Prim::Sigmoid>},
        {"sin", unary_float<Prim::Sin>},
        {"sinc", unary_float<Prim::Sinc>},
        {"sinh", unary_float<Prim::Sinh>},
        {"special_bessel_j0", unary_float<Prim::BesselJ0>},
        {"special_bessel_j1", unary_float<Prim::BesselJ1>},
        {"special_bessel_y0", unary_float<Prim::BesselY0>},
        {"special_bessel_y1", unary_float<Prim::BesselY1>},
        {"special_erfcx", unary_float<Prim::Erfcx>},
        {"special_i0e", unary_float<Prim::BesselI0e>},
        {"special_i1", unary_float<Prim::BesselI1>},
        {"special_i1e", unary_float<Prim::BesselI1e>},
        {"special_log_ndtr", unary_float<Prim::LogNdtr>},
        {"special_modified_bessel_k0", unary_float<Prim::ModifiedBesselK0>},
        {"special_modified_bessel_k1", unary_float<Prim::ModifiedBesselK1>},
        {"special_ndtri", unary_float<Prim::Ndtri>},
        {"special_spherical_bessel_j0", unary_float<Prim::SphericalBesselJ0>},
        {"special_chebyshev_polynomial_t", polynomial<Prim::ChebyshevT>},
        {"special_chebyshev_polynomial_u", polynomial<Prim::ChebyshevU>},
        {"special_hermite_polynomial_h", polynomial<Prim::HermiteH>},
        {"special_laguerre_polynomial_l", polynomial<Prim::LaguerreL>},
        {"special_legendre_polynomial_p", polynomial<Prim::LegendreP>},
        {"special_modified_bessel_i0", unary_float<Prim::BesselI0>},
        {"special_modified_bessel_i1", unary_float<Prim::BesselI1>},
        {"special_entr", lower_entr},
        {"sqrt", unary_float<Prim::Sqrt>},
        {"tan", unary_float<Prim::Tan>},
        {"tanh", unary_float<Prim::Tanh>},
        {"abs", lower_abs},
        {"angle", lower_angle},
        {"bitwise_not", unary_same<Prim::BitwiseNot>},
        {"ceil", unary_rounding<Prim::Ceil>},
        {"conj_physical", lower_conj_or_self},
        {"_conj_physical", lower_conj_physical},
        {"floor", unary_rounding<Prim::Floor>},
        {"frac", unary_same<Prim::Frac>},
        {"neg", unary_same<Prim::Neg>},
        {"positive", lower_positive},
        {"relu", unary_same<Prim::Relu>},
        {"round", lower_round},
        {"sgn", lower_sign},
        {"sign", lower_sign},
        {"square", lower_square},
        {"trunc", unary_rounding<Prim::Trunc>},
        {"deg2rad", lower_deg2rad},
        {"rad2deg", lower_rad2deg},
        {"isfinite", unary_bool<Prim::IsFinite>},
        {"isinf", unary_bool<Prim::IsInf>},
        {"isnan", unary_bool<Prim::IsNan>},
        {"isposinf", is_signed_infinity<1>},
        {"isneginf", is_signed_infinity<-1>},
        {"logical_not", unary_bool<Prim::LogicalNot>},
        {"signbit", unary_bool<Prim::Signbit>},
        {"logit", lower_logit},
        {"nan_to_num", lower_nan_to_num},
        {"polygamma", lower_polygamma},
        {"add", lower_add},
        {"sub", lower_sub},
        {"rsub", lower_rsub},
        {"mul", lower_mul},
        {"div", lower_div},
        {"floor_divide", lower_floor_divide},
        {"fmod", binary_same<Prim::Fmod>},
        {"remainder", binary_same<Prim::Remainder>},
        {"pow", lower_pow},
        {"atan2", binary_float<Prim::Atan2>},
        {"copysign", binary_float<Prim::Copysign>},
        {"hypot", binary_same<Prim::Hypot>},
        {"nextafter", binary_same<Prim::Nextafter>},
        {"maximum", binary_same<Prim::Maximum>},
        {"minimum", binary_same<Prim::Minimum>},
        {"fmax", binary_same<Prim::Fmax>},
        {"fmin", binary_same<Prim::Fmin>},
        {"gcd", binary_same<Prim::Gcd>},
        {"lcm", lower_lcm},
        {"igamma", binary_same<Prim::Igamma>},
        {"igammac", binary_same<Prim::Igammac>},
        {"xlogy", binary_float<Prim::Xlogy>},
        {"special_xlog1py", binary_float<Prim::Xlog1py>},
        {"special_zeta", binary_float<Prim::Zeta>},
        {"bitwise_and", binary_same<Prim::BitwiseAnd>},
        {"bitwise_or", binary_same<Prim::BitwiseOr>},
        {"bitwise_xor", binary_same<Prim::BitwiseXor>},
        {"bitwise_left_shift", binary_same<Prim::ShiftLeft>},
        {"bitwise_right_shift", binary_same<Prim::ShiftRight>},
        {"__lshift__", binary_same<Prim::ShiftLeft>},
        {"__rshift__", binary_same<Prim::ShiftRight>},
        {"logical_and", logical<Prim::LogicalAnd>},
        {"logical_or", logical<Prim::LogicalOr>},
        {"logical_xor", logical<Prim::LogicalXor>},
        {"eq", compare<Prim::Eq>},
        {"ne", compare<Prim::Ne>},
        {"lt", compare<Prim::Lt>},
        {"le", compare<Prim::Le>},
        {"gt", compare<Prim::Gt>},
        {"ge", compare<Prim::Ge>},
        {"clamp", lower_clamp},
        {"clamp_min", lower_clamp_min},
        {"clamp_max", lower_clamp_max},
        {"logaddexp", lower_logaddexp_e},
        {"logaddexp2", lower_logaddexp_2},
        {"heaviside", lower_heaviside},
        {"complex", lower_complex},
    };
    return table;
}

}  // namespace ingot::trace
