// See math_functions.h.
#include "capture/math_functions.h"

#include <cmath>
#include <numbers>

namespace ingot::capture {
namespace {

double log_of_base(double x, double base) { return std::log(x) / std::log(base); }
double degrees(double x) { return x * (180.0 / std::numbers::pi); }
double radians(double x) { return x * (std::numbers::pi / 180.0); }

/// `a % b` and `a // b` as CPython's floats have them.
double remainder_of(double a, double b) {
    double rest = std::fmod(a, b);
    if (rest == 0) return std::copysign(0.0, b);
    if ((b < 0) != (rest < 0)) rest += b;
    return rest;
}
double quotient_of(double a, double b) {
    double rest = std::fmod(a, b), quotient = (a - rest) / b;
    if (rest != 0 && (b < 0) != (rest < 0)) quotient -= 1.0;
    if (quotient == 0) return std::copysign(0.0, a / b);
    const double whole = std::floor(quotient);
    return quotient - whole > 0.5 ? whole + 1.0 : whole;
}

constexpr MathFunction kFunctions[] = {
    {"math.acos", [](double x) { return std::acos(x); }},
    {"math.acosh", [](double x) { return std::acosh(x); }},
    {"math.asin", [](double x) { return std::asin(x); }},
    {"math.asinh", [](double x) { return std::asinh(x); }},
    {"math.atan", [](double x) { return std::atan(x); }},
    {"math.atanh", [](double x) { return std::atanh(x); }},
    {"math.cbrt", [](double x) { return std::cbrt(x); }},
    {"math.cos", [](double x) { return std::cos(x); }},
    {"math.cosh", [](double x) { return std::cosh(x); }},
    {"math.degrees", degrees},
    {"math.erf", [](double x) { return std::erf(x); }},
    {"math.erfc", [](double x) { return std::erfc(x); }},
    {"math.exp", [](double x) { return std::exp(x); }},
    {"math.exp2", [](double x) { return std::exp2(x); }},
    {"math.expm1", [](double x) { return std::expm1(x); }},
    {"math.fabs", [](double x) { return std::fabs(x); }},
    {"math.log", [](double x) { return std::log(x); }},
    {"math.log10", [](double x) { return std::log10(x); }},
    {"math.log1p", [](double x) { return std::log1p(x); }},
    {"math.log2", [](double x) { return std::log2(x); }},
    {"math.radians", radians},
    {"math.sin", [](double x) { return std::sin(x); }},
    {"math.sinh", [](double x) { return std::sinh(x); }},
    {"math.sqrt", [](double x) { return std::sqrt(x); }},
    {"math.tan", [](double x) { return std::tan(x); }},
    {"math.tanh", [](double x) { return std::tanh(x); }},
    // To whole numbers: what gives integers in Python.
    {"math.ceil", [](double x) { return std::ceil(x); }},
    {"math.floor", [](double x) { return std::floor(x); }},
    {"math.trunc", [](double x) { return std::trunc(x); }},
    {"round", [](double x) { return std::nearbyint(x); }},  // halves to even numbers
    {"math.atan2", nullptr, [](double a, double b) { return std::atan2(a, b); }},
    {"math.copysign", nullptr, [](double a, double b) { return std::copysign(a, b); }},
    {"math.fmod", nullptr, [](double a, double b) { return std::fmod(a, b); }},
    {"math.log", nullptr, log_of_base},
    {"math.pow", nullptr, [](double a, double b) { return std::pow(a, b); }},
    {"%", nullptr, remainder_of},
    {"//", nullptr, quotient_of},
};

}  // namespace

const MathFunction* find_math_function(std::string_view name, std::size_t arguments) {
    for (const MathFunction& f : kFunctions)
        if (f.name == name &&
            (arguments == 1 ? f.of_one != nullptr : arguments == 2 && f.of_two != nullptr))
            return &f;
    return nullptr;
}

}  // namespace ingot::capture
