// The table of scalar functions and those that libm lacks.
#include "codegen/llvm/math_library.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace ingot::codegen {

namespace {

constexpr double kPi = 3.14159265358979323846;

/// lgamma writes the global `signgam`; the reentrant form keeps kernels free of shared state.
double lgamma_reentrant(double x) {
    int sign = 0;
    return static_cast<double>(::lgammal_r(static_cast<long double>(x), &sign));
}
float lgamma_reentrant(float x) {
    int sign = 0;
    return static_cast<float>(::lgamma_r(static_cast<double>(x), &sign));
}

/// The functions that libm's f64 version misses by up to 3 ulp, through long double.
double expm1_wide(double x) { return static_cast<double>(std::expm1(static_cast<long double>(x))); }
double log10_wide(double x) { return static_cast<double>(std::log10(static_cast<long double>(x))); }
double log1p_wide(double x) { return static_cast<double>(std::log1p(static_cast<long double>(x))); }
double sinh_wide(double x) { return static_cast<double>(std::sinh(static_cast<long double>(x))); }
double cosh_wide(double x) { return static_cast<double>(std::cosh(static_cast<long double>(x))); }
double tanh_wide(double x) { return static_cast<double>(std::tanh(static_cast<long double>(x))); }
double asinh_wide(double x) { return static_cast<double>(std::asinh(static_cast<long double>(x))); }
double acosh_wide(double x) { return static_cast<double>(std::acosh(static_cast<long double>(x))); }
double atanh_wide(double x) { return static_cast<double>(std::atanh(static_cast<long double>(x))); }
double erf_wide(double x) { return static_cast<double>(std::erf(static_cast<long double>(x))); }
double erfc_wide(double x) { return static_cast<double>(std::erfc(static_cast<long double>(x))); }
double cbrt_wide(double x) { return static_cast<double>(std::cbrt(static_cast<long double>(x))); }

float digamma_f(float x) { return static_cast<float>(digamma(x)); }
float erfinv_f(float x) { return static_cast<float>(erfinv(x)); }

template <typename T>
using Unary = T (*)(T);
template <typename T>
using Binary = T (*)(T, T);

/// The function on every element in place, for vectors that generated code has put on its stack.
template <typename T, Unary<T> fn>
void unary_lanes(T* x, std::int64_t count) {
    for (std::int64_t k = 0; k < count; ++k) x[k] = fn(x[k]);
}
template <typename T, Binary<T> fn>
void binary_lanes(T* x, const T* y, std::int64_t count) {
    for (std::int64_t k = 0; k < count; ++k) x[k] = fn(x[k], y[k]);
}

using Table = std::map<std::string, void*, std::less<>>;

template <Unary<float> f32, Unary<double> f64>
void add_unary(Table& table, const std::string& name) {
    table["ingot_" + name + "f"] = reinterpret_cast<void*>(f32);
    table["ingot_" + name] = reinterpret_cast<void*>(f64);
    table["ingot_" + name + "f_lanes"] = reinterpret_cast<void*>(&unary_lanes<float, f32>);
    table["ingot_" + name + "_lanes"] = reinterpret_cast<void*>(&unary_lanes<double, f64>);
}

template <Binary<float> f32, Binary<double> f64>
void add_binary(Table& table, const std::string& name) {
    table["ingot_" + name + "f"] = reinterpret_cast<void*>(f32);
    table["ingot_" + name] = reinterpret_cast<void*>(f64);
    table["ingot_" + name + "f_lanes"] = reinterpret_cast<void*>(&binary_lanes<float, f32>);
    table["ingot_" + name + "_lanes"] = reinterpret_cast<void*>(&binary_lanes<double, f64>);
}

}  // namespace

double digamma(double x) {
    if (x == 0) return std::copysign(std::numeric_limits<double>::infinity(), -x);
    if (std::isinf(x)) return x > 0 ? x : std::numeric_limits<double>::quiet_NaN();
    double result = 0;
    if (x < 0) {
        if (x == std::trunc(x)) return std::numeric_limits<double>::quiet_NaN();
        // Reflection; the fraction is taken first so that tan's argument is exact.
        double whole = 0;
        const double fraction = std::modf(x, &whole);
        result = -kPi / std::tan(kPi * fraction);
        x = 1 - x;
    }
    while (x < 12) {
        result -= 1 / x;
        x += 1;
    }
    // Asymptotic series with Bernoulli numbers B2..B14.
    const double z = 1 / (x * x);
    const double tail =
        z *
        (1.0 / 12 -
         z * (1.0 / 120 -
              z * (1.0 / 252 - z * (1.0 / 240 - z * (1.0 / 132 - z * (691.0 / 32760 - z / 12))))));
    return result + std::log(x) - 0.5 / x - tail;
}

double erfinv(double y) {
    if (std::isnan(y) || std::abs(y) > 1) return std::numeric_limits<double>::quiet_NaN();
    if (std::abs(y) == 1) return std::copysign(std::numeric_limits<double>::infinity(), y);
    if (y == 0) return y;
    // Start: Winitzki's closed form, good to 2e-3. Then Halley steps on erf or, towards ±1, on
    // erfc, where y itself carries no digits but 1-|y| is exact.
    constexpr double a = 0.147;
    const double magnitude = std::abs(y);
    const double rest = 1 - magnitude;
    const double log_term = std::log(rest * (1 + magnitude));
    const double half = 2 / (kPi * a) + log_term / 2;
    double x = std::sqrt(std::sqrt(half * half - log_term / a) - half);
    if (magnitude < 1e-8) return y * (std::sqrt(kPi) / 2);
    for (int step = 0; step < 4; ++step) {
        const double error = magnitude < 0.5 ? std::erf(x) - magnitude : rest - std::erfc(x);
        const double u = error / (2 / std::sqrt(kPi) * std::exp(-x * x));
        x -= u / (1 + x * u);
    }
    return std::copysign(x, y);
}

std::map<std::string, void*, std::less<>> math_symbols() {
    std::map<std::string, void*, std::less<>> table;
    add_unary<std::exp, std::exp>(table, "exp");
    add_unary<std::exp2, std::exp2>(table, "exp2");
    add_unary<std::expm1, expm1_wide>(table, "expm1");
    add_unary<std::log, std::log>(table, "log");
    add_unary<std::log2, std::log2>(table, "log2");
    add_unary<std::log10, log10_wide>(table, "log10");
    add_unary<std::log1p, log1p_wide>(table, "log1p");
    add_unary<std::sin, std::sin>(table, "sin");
    add_unary<std::cos, std::cos>(table, "cos");
    add_unary<std::tan, std::tan>(table, "tan");
    add_unary<std::asin, std::asin>(table, "asin");
    add_unary<std::acos, std::acos>(table, "acos");
    add_unary<std::atan, std::atan>(table, "atan");
    add_unary<std::sinh, sinh_wide>(table, "sinh");
    add_unary<std::cosh, cosh_wide>(table, "cosh");
    add_unary<std::tanh, tanh_wide>(table, "tanh");
    add_unary<std::asinh, asinh_wide>(table, "asinh");
    add_unary<std::acosh, acosh_wide>(table, "acosh");
    add_unary<std::atanh, atanh_wide>(table, "atanh");
    add_unary<std::erf, erf_wide>(table, "erf");
    add_unary<std::erfc, erfc_wide>(table, "erfc");
    add_unary<std::cbrt, cbrt_wide>(table, "cbrt");
    add_unary<lgamma_reentrant, lgamma_reentrant>(table, "lgamma");
    add_unary<digamma_f, digamma>(table, "digamma");
    add_unary<erfinv_f, erfinv>(table, "erfinv");
    add_binary<std::pow, std::pow>(table, "pow");
    add_binary<std::atan2, std::atan2>(table, "atan2");
    add_binary<std::hypot, std::hypot>(table, "hypot");
    add_binary<std::fmod, std::fmod>(table, "fmod");
    // The C library itself, for calls that LLVM's code generator makes up.
    table["memcpy"] = reinterpret_cast<void*>(&::memcpy);
    table["memset"] = reinterpret_cast<void*>(&::memset);
    table["memmove"] = reinterpret_cast<void*>(&::memmove);
    table["fmaf"] = reinterpret_cast<void*>(static_cast<float (*)(float, float, float)>(&::fmaf));
    table["fma"] = reinterpret_cast<void*>(static_cast<double (*)(double, double, double)>(&::fma));
    table["fmodf"] = table["ingot_fmodf"];
    table["fmod"] = table["ingot_fmod"];
    return table;
}

}  // namespace ingot::codegen
