// Array functions for generated code; see special.h. The mathematics of the special functions is
// the reference evaluator's (ir/special.h).
#include "ir/special.h"

#include <cmath>
#include <complex>
#include <cstdint>
#include <numbers>

#include "codegen/llvm/special.h"

namespace ingot::codegen {

namespace {

using Unary = double (*)(double);
using Binary = double (*)(double, double);

// One function a formula and type, so that each has an address.
template <class T, Unary f>
void unary_array(const void* operands, void* results, std::int64_t lanes) {
    const auto* x = static_cast<const T*>(operands);
    auto* y = static_cast<T*>(results);
    for (std::int64_t i = 0; i < lanes; ++i) y[i] = static_cast<T>(f(static_cast<double>(x[i])));
}

template <class T, Binary f>
void binary_array(const void* operands, void* results, std::int64_t lanes) {
    const auto* x = static_cast<const T*>(operands);
    auto* y = static_cast<T*>(results);
    for (std::int64_t i = 0; i < lanes; ++i)
        y[i] = static_cast<T>(f(static_cast<double>(x[i]), static_cast<double>(x[lanes + i])));
}

template <class T>
void nextafter_array(const void* operands, void* results, std::int64_t lanes) {
    const auto* x = static_cast<const T*>(operands);
    auto* y = static_cast<T*>(results);
    for (std::int64_t i = 0; i < lanes; ++i) y[i] = std::nextafter(x[i], x[lanes + i]);
}

double polygamma_of(double order, double x) {
    return special::polygamma(static_cast<int>(order), x);
}

// ---- integers -----------------------------------------------------------------------------------

std::uint64_t power(std::uint64_t base, std::uint64_t exponent) {
    std::uint64_t r = 1;
    for (; exponent; exponent >>= 1, base *= base)
        if (exponent & 1) r *= base;
    return r;
}

template <class T>
T integer_pow(T a, T b) {
    if constexpr (std::is_signed_v<T>)
        if (b < 0) return a == 1 ? 1 : a == -1 ? (b % 2 == 0 ? 1 : -1) : 0;
    return static_cast<T>(power(static_cast<std::uint64_t>(a), static_cast<std::uint64_t>(b)));
}

template <class T>
std::uint64_t magnitude(T a) {
    return a < 0 ? 0 - static_cast<std::uint64_t>(a) : static_cast<std::uint64_t>(a);
}

template <class T>
T integer_gcd(T a, T b) {
    std::uint64_t x = magnitude(a), y = magnitude(b);
    while (y != 0) {
        const std::uint64_t rest = x % y;
        x = y;
        y = rest;
    }
    return static_cast<T>(x);
}

template <class T>
T integer_lcm(T a, T b) {
    const T g = integer_gcd(a, b);
    if (g == 0) return 0;
    return static_cast<T>(magnitude(a) / magnitude(g) * magnitude(b));
}

template <class T, T (*f)(T, T)>
void integer_array(const void* operands, void* results, std::int64_t lanes) {
    const auto* x = static_cast<const T*>(operands);
    auto* y = static_cast<T*>(results);
    for (std::int64_t i = 0; i < lanes; ++i) y[i] = f(x[i], x[lanes + i]);
}

// ---- complex ------------------------------------------------------------------------------------

using Z = std::complex<double>;
using ComplexUnary = Z (*)(const Z&);
using ComplexBinary = Z (*)(const Z&, const Z&);

template <class T, ComplexUnary f>
void complex_unary_array(const void* operands, void* results, std::int64_t lanes) {
    const auto* x = static_cast<const T*>(operands);
    auto* y = static_cast<T*>(results);
    for (std::int64_t i = 0; i < lanes; ++i) {
        const Z r = f(Z(x[i], x[lanes + i]));
        y[i] = static_cast<T>(r.real());
        y[lanes + i] = static_cast<T>(r.imag());
    }
}

template <class T, ComplexBinary f>
void complex_binary_array(const void* operands, void* results, std::int64_t lanes) {
    const auto* x = static_cast<const T*>(operands);
    auto* y = static_cast<T*>(results);
    for (std::int64_t i = 0; i < lanes; ++i) {
        const Z r = f(Z(x[i], x[lanes + i]), Z(x[2 * lanes + i], x[3 * lanes + i]));
        y[i] = static_cast<T>(r.real());
        y[lanes + i] = static_cast<T>(r.imag());
    }
}

Z z_exp2(const Z& z) { return std::exp(z * std::numbers::ln2); }
Z z_expm1(const Z& z) {
    const double s = std::sin(z.imag() / 2);
    const double re = std::expm1(z.real()) * std::cos(z.imag()) - 2 * s * s;
    return {re, std::exp(z.real()) * std::sin(z.imag())};
}
Z z_log1p(const Z& z) {
    const double x = z.real(), y = z.imag();
    if (std::abs(x) < 0.5 && std::abs(y) < 0.5)  // |1 + z|^2 - 1 without cancellation
        return {0.5 * std::log1p(x * (2 + x) + y * y), std::atan2(y, 1 + x)};
    return std::log(Z(1 + x, y));
}
Z z_log2(const Z& z) { return std::log(z) / std::numbers::ln2; }
Z z_rsqrt(const Z& z) { return 1.0 / std::sqrt(z); }
Z z_sigmoid(const Z& z) { return 1.0 / (1.0 + std::exp(-z)); }
Z z_xlogy(const Z& x, const Z& y) {
    if (std::isnan(y.real()) || std::isnan(y.imag())) return y;
    return x == Z(0) ? Z(0) : x * std::log(y);
}
Z z_pow(const Z& x, const Z& y) {
    if (y == Z(0)) return Z(1);
    if (y == Z(2)) return x * x;
    return std::pow(x, y);
}

// ---- the table ----------------------------------------------------------------------------------

using Table = std::map<std::string, void*, std::less<>>;

template <class F>
void* address(F* f) {
    return reinterpret_cast<void*>(f);
}

template <Unary f>
void add_unary(Table& t, const std::string& name) {
    t["ingot_special_" + name] = address(&unary_array<double, f>);
    t["ingot_special_" + name + "_f32"] = address(&unary_array<float, f>);
}
template <Binary f>
void add_binary(Table& t, const std::string& name) {
    t["ingot_special_" + name] = address(&binary_array<double, f>);
    t["ingot_special_" + name + "_f32"] = address(&binary_array<float, f>);
}
template <ComplexUnary f>
void add_complex(Table& t, const std::string& name) {
    t["ingot_complex_" + name] = address(&complex_unary_array<double, f>);
    t["ingot_complex_" + name + "_f32"] = address(&complex_unary_array<float, f>);
}
template <ComplexBinary f>
void add_complex(Table& t, const std::string& name) {
    t["ingot_complex_" + name] = address(&complex_binary_array<double, f>);
    t["ingot_complex_" + name + "_f32"] = address(&complex_binary_array<float, f>);
}
template <class T>
void add_integers(Table& t, const std::string& suffix) {
    t["ingot_special_pow" + suffix] = address(&integer_array<T, integer_pow<T>>);
    t["ingot_special_gcd" + suffix] = address(&integer_array<T, integer_gcd<T>>);
    t["ingot_special_lcm" + suffix] = address(&integer_array<T, integer_lcm<T>>);
}

void add_special(Table& t) {
    add_unary<special::bessel_i0>(t, "bessel_i0");
    add_unary<special::bessel_i0e>(t, "bessel_i0e");
    add_unary<special::bessel_i1>(t, "bessel_i1");
    add_unary<special::bessel_i1e>(t, "bessel_i1e");
    add_unary<special::bessel_j0>(t, "bessel_j0");
    add_unary<special::bessel_j1>(t, "bessel_j1");
    add_unary<special::bessel_y0>(t, "bessel_y0");
    add_unary<special::bessel_y1>(t, "bessel_y1");
    add_unary<special::bessel_k0>(t, "modified_bessel_k0");
    add_unary<special::bessel_k1>(t, "modified_bessel_k1");
    add_unary<special::spherical_j0>(t, "spherical_bessel_j0");
    add_unary<special::erfcx>(t, "erfcx");
    add_unary<special::log_ndtr>(t, "log_ndtr");
    add_unary<special::ndtri>(t, "ndtri");
    add_binary<special::igamma>(t, "igamma");
    add_binary<special::igammac>(t, "igammac");
    add_binary<special::zeta>(t, "zeta");
    add_binary<special::chebyshev_t>(t, "chebyshev_polynomial_t");
    add_binary<special::chebyshev_u>(t, "chebyshev_polynomial_u");
    add_binary<special::hermite_h>(t, "hermite_polynomial_h");
    add_binary<special::laguerre_l>(t, "laguerre_polynomial_l");
    add_binary<special::legendre_p>(t, "legendre_polynomial_p");
    add_binary<polygamma_of>(t, "polygamma");
    t["ingot_special_nextafter"] = address(&nextafter_array<double>);
    t["ingot_special_nextafter_f32"] = address(&nextafter_array<float>);
}

void add_complex_functions(Table& t) {
    add_complex<std::acos<double>>(t, "acos");
    add_complex<std::acosh<double>>(t, "acosh");
    add_complex<std::asin<double>>(t, "asin");
    add_complex<std::asinh<double>>(t, "asinh");
    add_complex<std::atan<double>>(t, "atan");
    add_complex<std::atanh<double>>(t, "atanh");
    add_complex<std::cos<double>>(t, "cos");
    add_complex<std::cosh<double>>(t, "cosh");
    add_complex<std::exp<double>>(t, "exp");
    add_complex<z_exp2>(t, "exp2");
    add_complex<z_expm1>(t, "expm1");
    add_complex<std::log<double>>(t, "log");
    add_complex<std::log10<double>>(t, "log10");
    add_complex<z_log1p>(t, "log1p");
    add_complex<z_log2>(t, "log2");
    add_complex<z_rsqrt>(t, "rsqrt");
    add_complex<z_sigmoid>(t, "sigmoid");
    add_complex<std::sin<double>>(t, "sin");
    add_complex<std::sinh<double>>(t, "sinh");
    add_complex<std::sqrt<double>>(t, "sqrt");
    add_complex<std::tan<double>>(t, "tan");
    add_complex<std::tanh<double>>(t, "tanh");
    add_complex<z_pow>(t, "pow");
    add_complex<z_xlogy>(t, "xlogy");
}

}  // namespace

std::map<std::string, void*, std::less<>> special_symbols() {
    Table t;
    add_special(t);
    add_complex_functions(t);
    add_integers<std::int64_t>(t, "_i64");
    add_integers<std::uint64_t>(t, "_u64");
    return t;
}

}  // namespace ingot::codegen
