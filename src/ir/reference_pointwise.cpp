// Pointwise prims of the reference evaluator, one number at a time; see reference.h.
#include <bit>
#include <cmath>
#include <numeric>

#include "ir/philox.h"
#include "ir/reference.h"
#include "ir/special.h"

namespace ingot {

namespace {

using Complex = std::complex<double>;
constexpr double kPi = 3.14159265358979323846;

double sinc(double x) { return x == 0 ? 1 : std::sin(kPi * x) / (kPi * x); }
double sign(double x) { return static_cast<double>((x > 0) - (x < 0)); }
double relu(double x) { return x > 0 || std::isnan(x) ? x : 0.0; }

// Functions of one real number; nothing where the prim is none.
std::optional<double> unary(Prim p, double x) {
    switch (p) {
            // clang-format off
        case Prim::Abs: return std::fabs(x);
        case Prim::Acos: return std::acos(x);
        case Prim::Acosh: return std::acosh(x);
        case Prim::Angle: return std::isnan(x) ? x : x < 0 ? kPi : 0.0;
        case Prim::Asin: return std::asin(x);
        case Prim::Asinh: return std::asinh(x);
        case Prim::Atan: return std::atan(x);
        case Prim::Atanh: return std::atanh(x);
        case Prim::BesselI0: return special::bessel_i0(x);
        case Prim::BesselI0e: return special::bessel_i0e(x);
        case Prim::BesselI1: return special::bessel_i1(x);
        case Prim::BesselI1e: return special::bessel_i1e(x);
        case Prim::BesselJ0: return special::bessel_j0(x);
        case Prim::BesselJ1: return special::bessel_j1(x);
        case Prim::BesselY0: return special::bessel_y0(x);
        case Prim::BesselY1: return special::bessel_y1(x);
        case Prim::ModifiedBesselK0: return special::bessel_k0(x);
        case Prim::ModifiedBesselK1: return special::bessel_k1(x);
        case Prim::Cbrt: return std::cbrt(x);
        case Prim::Ceil: return std::ceil(x);
        case Prim::Conj: return x;
        case Prim::Cos: return std::cos(x);
        case Prim::Cosh: return std::cosh(x);
        case Prim::Digamma: return special::digamma(x);
        case Prim::Erf: return std::erf(x);
        case Prim::Erfc: return std::erfc(x);
        case Prim::Erfcx: return special::erfcx(x);
        case Prim::Erfinv: return special::erfinv(x);
        case Prim::Exp: return std::exp(x);
        case Prim::Exp2: return std::exp2(x);
        case Prim::Expm1: return std::expm1(x);
        case Prim::Floor: return std::floor(x);
        case Prim::Frac: return x - std::trunc(x);
        case Prim::Imag: return 0.0;
        case Prim::Lgamma: return std::lgamma(x);
        case Prim::Log: return std::log(x);
        case Prim::Log10: return std::log10(x);
        case Prim::Log1p: return std::log1p(x);
        case Prim::Log2: return std::log2(x);
        case Prim::LogNdtr: return special::log_ndtr(x);
        case Prim::Ndtri: return special::ndtri(x);
        case Prim::Neg: return -x;
        case Prim::Real: return x;
        case Prim::Reciprocal: return 1 / x;
        case Prim::Relu: return relu(x);
        case Prim::Round: return std::nearbyint(x);
        case Prim::Rsqrt: return 1 / std::sqrt(x);
        case Prim::Sigmoid: return 1 / (1 + std::exp(-x));
        case Prim::Sign: return sign(x);
        case Prim::Sin: return std::sin(x);
        case Prim::Sinc: return sinc(x);
        case Prim::Sinh: return std::sinh(x);
        case Prim::SphericalBesselJ0: return special::spherical_j0(x);
        case Prim::Sqrt: return std::sqrt(x);
        case Prim::Tan: return std::tan(x);
        case Prim::Tanh: return std::tanh(x);
        case Prim::Trunc: return std::trunc(x);
        default: return std::nullopt;
            // clang-format on
    }
}

std::optional<Complex> unary(Prim p, Complex z) {
    const double ln2 = std::log(2.0);
    switch (p) {
            // clang-format off
        case Prim::Acos: return std::acos(z);
        case Prim::Acosh: return std::acosh(z);
        case Prim::Asin: return std::asin(z);
        case Prim::Asinh: return std::asinh(z);
        case Prim::Atan: return std::atan(z);
        case Prim::Atanh: return std::atanh(z);
        case Prim::Abs: return std::abs(z);
        case Prim::Angle: return std::arg(z);
        case Prim::Conj: return std::conj(z);
        case Prim::Cos: return std::cos(z);
        case Prim::Cosh: return std::cosh(z);
        case Prim::Exp: return std::exp(z);
        case Prim::Exp2: return std::exp(z * ln2);
        case Prim::Expm1: {
            // exp(a) cos(b) - 1 without cancellation near 0.
            double s = std::sin(z.imag() / 2), e = std::expm1(z.real());
            return Complex(e * std::cos(z.imag()) - 2 * s * s, (e + 1) * std::sin(z.imag()));
        }
        case Prim::Imag: return z.imag();
        case Prim::Log: return std::log(z);
        case Prim::Log10: return std::log10(z);
        case Prim::Log1p: {
            // log|1 + z| through log1p of |1 + z|^2 - 1.
            double x = z.real(), y = z.imag();
            return Complex(std::log1p(x * (2 + x) + y * y) / 2, std::atan2(y, 1 + x));
        }
        case Prim::Log2: return std::log(z) / ln2;
        case Prim::Neg: return -z;
        case Prim::Real: return z.real();
        case Prim::Reciprocal: return 1.0 / z;
        case Prim::Rsqrt: return 1.0 / std::sqrt(z);
        case Prim::Sigmoid: return 1.0 / (1.0 + std::exp(-z));
        case Prim::Sign: return z == 0.0 ? z : z / std::abs(z);
        case Prim::Sin: return std::sin(z);
        case Prim::Sinc: return z == 0.0 ? 1.0 : std::sin(kPi * z) / (kPi * z);
        case Prim::Sinh: return std::sinh(z);
        case Prim::Sqrt: return std::sqrt(z);
        case Prim::Tan: return std::tan(z);
        case Prim::Tanh: return std::tanh(z);
        default: return std::nullopt;
            // clang-format on
    }
}

std::uint64_t as_unsigned(std::int64_t x) { return static_cast<std::uint64_t>(x); }
std::int64_t as_signed(std::uint64_t x) { return static_cast<std::int64_t>(x); }

// Functions of one integer; results wrap outside.
std::optional<std::int64_t> unary(Prim p, std::int64_t x, DType t) {
    switch (p) {
        case Prim::Abs:
            return is_signed_int(t) && x < 0 ? as_signed(0 - as_unsigned(x)) : x;
        case Prim::BitwiseNot:
            return t == DType::Bool ? (x == 0) : ~x;
        case Prim::Neg:
            return as_signed(0 - as_unsigned(x));
        case Prim::Relu:
            return is_signed_int(t) && x < 0 ? 0 : x;
        case Prim::Sign:
            return is_signed_int(t) ? (x > 0) - (x < 0) : (x != 0);
        case Prim::Popcount:
            return std::popcount(as_unsigned(x) &
                                 (bytes(t) == 8 ? ~0ull : (1ull << (8 * bytes(t))) - 1));
        case Prim::Frac:
        case Prim::Imag:
            return 0;
        case Prim::Ceil:
        case Prim::Floor:
        case Prim::Round:
        case Prim::Trunc:
        case Prim::Conj:
        case Prim::Real:
            return x;
        default:
            return std::nullopt;
    }
}

double floor_div(double a, double b) {
    if (b == 0) return a / b;
    double rest = std::fmod(a, b), quotient = (a - rest) / b;
    if (rest != 0 && (b < 0) != (rest < 0)) quotient -= 1;
    if (quotient == 0) return std::copysign(0.0, a / b);
    double floored = std::floor(quotient);
    return quotient - floored > 0.5 ? floored + 1 : floored;
}
double remainder(double a, double b) {
    double rest = std::fmod(a, b);
    return rest != 0 && (b < 0) != (rest < 0) ? rest + b : rest;
}
double maximum(double a, double b) {
    return std::isnan(a) || std::isnan(b) ? a + b : a > b ? a : b;
}
double minimum(double a, double b) {
    return std::isnan(a) || std::isnan(b) ? a + b : a < b ? a : b;
}

double next_after(double a, double b, DType t) {
    if (t == DType::F64) return std::nextafter(a, b);
    if (t == DType::F32) return std::nextafterf(static_cast<float>(a), static_cast<float>(b));
    if (std::isnan(a) || std::isnan(b)) return a + b;
    if (a == b) return b;
    std::uint16_t one = 1;
    if (a == 0) return std::copysign(from_bits(one, t), b);
    std::uint16_t bits = to_bits(static_cast<float>(a), t);
    return from_bits(static_cast<std::uint16_t>((a < b) == (a > 0) ? bits + 1 : bits - 1), t);
}

std::optional<double> binary(Prim p, double a, double b, DType t) {
    switch (p) {
            // clang-format off
        case Prim::Add: return a + b;
        case Prim::Sub: return a - b;
        case Prim::Mul: return a * b;
        case Prim::Div: return a / b;
        case Prim::TruncDiv: return std::trunc(round_float(a / b, compute_type(t)));
        case Prim::FloorDiv: return floor_div(a, b);
        case Prim::Fmod: return std::fmod(a, b);
        case Prim::Remainder: return remainder(a, b);
        case Prim::Pow: return std::pow(a, b);
        case Prim::Atan2: return std::atan2(a, b);
        case Prim::Hypot: return std::hypot(a, b);
        case Prim::Copysign: return std::copysign(a, b);
        case Prim::Nextafter: return next_after(a, b, t);
        case Prim::Maximum: return maximum(a, b);
        case Prim::Minimum: return minimum(a, b);
        case Prim::Fmax: return std::fmax(a, b);
        case Prim::Fmin: return std::fmin(a, b);
        case Prim::Igamma: return special::igamma(a, b);
        case Prim::Igammac: return special::igammac(a, b);
        case Prim::Zeta: return special::zeta(a, b);
        case Prim::Xlogy: return std::isnan(b) ? b : a == 0 ? 0 : a * std::log(b);
        case Prim::Xlog1py: return std::isnan(b) ? b : a == 0 ? 0 : a * std::log1p(b);
        case Prim::ChebyshevT: return special::chebyshev_t(a, b);
        case Prim::ChebyshevU: return special::chebyshev_u(a, b);
        case Prim::HermiteH: return special::hermite_h(a, b);
        case Prim::LaguerreL: return special::laguerre_l(a, b);
        case Prim::LegendreP: return special::legendre_p(a, b);
        default: return std::nullopt;
            // clang-format on
    }
}

std::optional<Complex> binary(Prim p, Complex a, Complex b) {
    switch (p) {
            // clang-format off
        case Prim::Add: return a + b;
        case Prim::Sub: return a - b;
        case Prim::Mul: return a * b;
        case Prim::Div: return a / b;
        case Prim::Pow: return b == 0.0 ? 1.0 : a == 0.0 ? 0.0 : std::pow(a, b);
        default: return std::nullopt;
            // clang-format on
    }
}

std::int64_t int_pow(std::int64_t a, std::int64_t b, bool is_signed) {
    if (is_signed && b < 0) return a == 1 ? 1 : a == -1 ? (b % 2 ? -1 : 1) : 0;
    std::uint64_t result = 1, base = as_unsigned(a);
    for (std::uint64_t e = as_unsigned(b); e; e >>= 1, base *= base)
        if (e & 1) result *= base;
    return as_signed(result);
}

// Quotient towards zero; 0 where eager raises (division by 0). The smallest number by -1 wraps.
std::int64_t trunc_div(std::int64_t a, std::int64_t b, bool is_unsigned) {
    if (b == 0) return 0;
    if (is_unsigned) return as_signed(as_unsigned(a) / as_unsigned(b));
    return b == -1 ? as_signed(0 - as_unsigned(a)) : a / b;
}

std::optional<std::int64_t> binary(Prim p, std::int64_t a, std::int64_t b, DType t) {
    const bool is_signed = is_signed_int(t), is_unsigned = !is_signed;
    const std::int64_t width = 8 * bytes(t);
    const bool in_width = b >= 0 && b < width;
    const std::int64_t quotient_rest =
        as_signed(as_unsigned(a) - as_unsigned(trunc_div(a, b, is_unsigned)) * as_unsigned(b));
    const bool adjust = is_signed && b != 0 && quotient_rest != 0 && (quotient_rest < 0) != (b < 0);
    const bool less = is_unsigned ? as_unsigned(a) < as_unsigned(b) : a < b;
    switch (p) {
        case Prim::Add:
            return t == DType::Bool ? (a | b) : as_signed(as_unsigned(a) + as_unsigned(b));
        case Prim::Sub:
            return as_signed(as_unsigned(a) - as_unsigned(b));
        case Prim::Mul:
            return as_signed(as_unsigned(a) * as_unsigned(b));
        case Prim::TruncDiv:
            return trunc_div(a, b, is_unsigned);
        case Prim::FloorDiv:
            return trunc_div(a, b, is_unsigned) - (adjust ? 1 : 0);
        case Prim::Fmod:
            return b == 0 ? 0 : quotient_rest;
        case Prim::Remainder:
            return b == 0 ? 0 : quotient_rest + (adjust ? b : 0);
        case Prim::Pow:
            return int_pow(a, b, is_signed);
        case Prim::Maximum:
        case Prim::Fmax:
            return less ? b : a;
        case Prim::Minimum:
        case Prim::Fmin:
            return less ? a : b;
        case Prim::Gcd:
        case Prim::Lcm: {
            std::uint64_t x = as_unsigned(is_signed && a < 0 ? as_signed(0 - as_unsigned(a)) : a);
            std::uint64_t y = as_unsigned(is_signed && b < 0 ? as_signed(0 - as_unsigned(b)) : b);
            std::uint64_t g = std::gcd(x, y);
            if (p == Prim::Gcd) return as_signed(g);
            return g == 0 ? 0 : as_signed(x / g * y);
        }
        case Prim::BitwiseAnd:
            return a & b;
        case Prim::BitwiseOr:
            return a | b;
        case Prim::BitwiseXor:
            return a ^ b;
        case Prim::ShiftLeft:
            return in_width ? as_signed(as_unsigned(a) << b) : 0;
        case Prim::ShiftRight:
            if (is_unsigned) return in_width ? as_signed(as_unsigned(a) >> b) : 0;
            return a >> (in_width ? b : width - 1);
        default:
            return std::nullopt;
    }
}

// -1, 0, 1, or 2 for unordered; complex numbers only know equal and unequal.
int compare(Num a, Num b, DType t) {
    if (is_complex(t)) return a.re == b.re && a.im == b.im ? 0 : 2;
    if (t == DType::U64)
        return (as_unsigned(a.i) > as_unsigned(b.i)) - (as_unsigned(a.i) < as_unsigned(b.i));
    if (is_integral(t)) return (a.i > b.i) - (a.i < b.i);
    if (std::isnan(a.re) || std::isnan(b.re)) return 2;
    return (a.re > b.re) - (a.re < b.re);
}

// Prims whose result is a bool.
std::optional<bool> predicate(Prim p, DType t, std::span<const Num> x) {
    const bool floating = !is_integral(t), complex = is_complex(t);
    auto on_parts = [&](auto test, bool both) {
        if (!complex) return test(x[0].re);
        return both ? test(x[0].re) && test(x[0].im) : test(x[0].re) || test(x[0].im);
    };
    auto finite = [](double v) { return std::isfinite(v); };
    auto infinite = [](double v) { return std::isinf(v); };
    auto nan = [](double v) { return std::isnan(v); };
    auto truth = [&](std::size_t i) { return is_nonzero(x[i], t); };
    switch (p) {
            // clang-format off
        case Prim::IsFinite: return !floating || on_parts(finite, true);
        case Prim::IsInf: return floating && on_parts(infinite, false);
        case Prim::IsNan: return floating && on_parts(nan, false);
        case Prim::Signbit: return floating ? std::signbit(x[0].re) : is_signed_int(t) && x[0].i < 0;
        case Prim::LogicalNot: return !truth(0);
        case Prim::LogicalAnd: return truth(0) && truth(1);
        case Prim::LogicalOr: return truth(0) || truth(1);
        case Prim::LogicalXor: return truth(0) != truth(1);
        case Prim::Eq: return compare(x[0], x[1], t) == 0;
        case Prim::Ne: return compare(x[0], x[1], t) != 0;
        case Prim::Lt: return compare(x[0], x[1], t) == -1;
        case Prim::Le: return compare(x[0], x[1], t) == -1 || compare(x[0], x[1], t) == 0;
        case Prim::Gt: return compare(x[0], x[1], t) == 1;
        case Prim::Ge: return compare(x[0], x[1], t) == 1 || compare(x[0], x[1], t) == 0;
        default: return std::nullopt;
            // clang-format on
    }
}

// A product and a sum with one rounding.
double fused(double a, double b, double c, DType t) {
    if (t == DType::F64) return std::fma(a, b, c);
    return std::fmaf(static_cast<float>(a), static_cast<float>(b), static_cast<float>(c));
}

double lerp(double a, double b, double w, DType t) {
    DType c = compute_type(t);
    double d = round_float(b - a, c);
    if (std::fabs(w) < 0.5) return a + round_float(w * d, c);
    return b - round_float(d * round_float(1 - w, c), c);
}

double round_decimals(double x, std::int64_t decimals, DType t) {
    DType c = compute_type(t);
    double scale = round_float(std::pow(10.0, static_cast<double>(std::abs(decimals))), c);
    if (decimals < 0) return round_float(std::nearbyint(round_float(x / scale, c)) * scale, c);
    return std::nearbyint(round_float(x * scale, c)) / scale;
}

Num bitcast(Num v, DType from, DType to) {
    std::uint8_t buffer[16] = {};
    store_num(from, buffer, v);
    return load_num(to, buffer);
}

[[noreturn]] void undefined(Prim p, DType t) {
    throw NotSupported(std::string(name(p)) + " of " + std::string(name(t)) +
                       " in the reference evaluator");
}

Num real_result(Prim p, DType t, std::span<const Num> x, std::int64_t imm) {
    std::optional<double> r;
    if (x.size() == 1) {
        if (p == Prim::Polygamma)
            r = special::polygamma(static_cast<int>(imm), x[0].re);
        else if (p == Prim::Round2)
            r = round_decimals(x[0].re, imm, t);
        else
            r = unary(p, x[0].re);
    } else if (x.size() == 2) {
        r = binary(p, x[0].re, x[1].re, t);
    } else if (p == Prim::Fma) {
        r = fused(x[0].re, x[1].re, x[2].re, t);
    } else if (p == Prim::Lerp) {
        r = lerp(x[0].re, x[1].re, x[2].re, t);
    } else if (p == Prim::Clamp) {
        r = minimum(maximum(x[0].re, x[1].re), x[2].re);
    }
    if (!r) undefined(p, t);
    return {*r, 0, 0};
}

Num complex_result(Prim p, DType t, std::span<const Num> x) {
    auto z = [&](std::size_t i) { return Complex(x[i].re, x[i].im); };
    std::optional<Complex> r;
    if (x.size() == 1)
        r = unary(p, z(0));
    else if (x.size() == 2)
        r = binary(p, z(0), z(1));
    else if (p == Prim::Fma)
        r = z(0) * z(1) + z(2);
    else if (p == Prim::Lerp)
        r = std::abs(z(2)) < 0.5 ? z(0) + z(2) * (z(1) - z(0))
                                 : z(1) - (z(1) - z(0)) * (1.0 - z(2));
    if (!r) undefined(p, t);
    return {r->real(), r->imag(), 0};
}

Num integer_result(Prim p, DType t, std::span<const Num> x, std::int64_t imm) {
    std::optional<std::int64_t> r;
    if (x.size() == 1)
        r = p == Prim::Round2 ? x[0].i : unary(p, x[0].i, t);
    else if (x.size() == 2)
        r = binary(p, x[0].i, x[1].i, t);
    else if (p == Prim::Fma)
        r = as_signed(as_unsigned(x[0].i) * as_unsigned(x[1].i) + as_unsigned(x[2].i));
    else if (p == Prim::Philox)
        r = philox_bits(as_unsigned(x[0].i), as_unsigned(x[1].i), as_unsigned(x[2].i),
                        PhiloxLayout::unpacked(imm));
    else if (p == Prim::Clamp)
        r = binary(Prim::Minimum, *binary(Prim::Maximum, x[0].i, x[1].i, t), x[2].i, t);
    if (!r) undefined(p, t);
    return {0, 0, *r};
}

}  // namespace

bool divides_by_zero(Prim prim, DType dtype, Num divisor) {
    const bool division = prim == Prim::TruncDiv || prim == Prim::FloorDiv || prim == Prim::Fmod ||
                          prim == Prim::Remainder;
    return division && is_integral(dtype) && !is_nonzero(divisor, dtype);
}

Num evaluate_pointwise(Prim prim, DType dtype, DType result, std::span<const Num> x,
                       std::int64_t imm, bool round) {
    check(is_pointwise(prim), "not a pointwise prim");
    DType kept = round ? result : is_complex(result) ? result : compute_type(result);
    if (prim == Prim::Select) return x[0].i ? x[1] : x[2];
    if (prim == Prim::Convert) return convert_num(x[0], dtype, kept);
    if (prim == Prim::Bitcast) return bitcast(x[0], dtype, result);
    if (prim == Prim::Complex) return round_num({x[0].re, x[1].re, 0}, result);
    if (auto b = predicate(prim, dtype, x)) return {0, 0, *b};
    if (is_integral(dtype)) {
        // The angle of an integer is a float only after conversion.
        return round_num(integer_result(prim, dtype, x, imm), kept);
    }
    if (is_complex(dtype)) return round_num(complex_result(prim, dtype, x), kept);
    return round_num(real_result(prim, dtype, x, imm), kept);
}

}  // namespace ingot
