// Special functions; see special.h. Series, continued fractions and asymptotic expansions from the
// NIST handbook (DLMF); Bessel functions from the C library and the C++ standard library.
#include "ir/special.h"

#include <cmath>
#include <limits>

namespace ingot::special {

namespace {
constexpr double kPi = 3.14159265358979323846;
constexpr double kSqrtPi = 1.77245385090551602730;
constexpr double kSqrt2 = 1.41421356237309504880;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kEps = 1e-17;

// B_2k / (2k)! for Euler-Maclaurin sums, and B_2k itself.
constexpr double kBernoulli[] = {1.0 / 6,  -1.0 / 30,     1.0 / 42, -1.0 / 30,
                                 5.0 / 66, -691.0 / 2730, 7.0 / 6,  -3617.0 / 510};
}  // namespace

double digamma(double x) {
    if (x == 0) return std::copysign(kInf, -x);
    if (std::isnan(x) || x == -kInf) return kNan;
    if (x < 0) {
        if (x == std::trunc(x)) return kNan;
        double whole;
        return digamma(1 - x) - kPi / std::tan(kPi * std::modf(x, &whole));
    }
    if (x == kInf) return kInf;
    double result = 0;
    for (; x < 12; x += 1) result -= 1 / x;
    double z = 1 / (x * x), power = z, series = 0;
    for (int k = 0; k < 8; ++k, power *= z) series += kBernoulli[k] / (2 * (k + 1)) * power;
    return result + std::log(x) - 0.5 / x - series;
}

double trigamma(double x) {
    if (x <= 0 && x == std::trunc(x)) return kInf;
    if (x < 0.5) {
        double s = std::sin(kPi * x);
        return kPi * kPi / (s * s) - trigamma(1 - x);
    }
    double result = 0;
    for (; x < 12; x += 1) result += 1 / (x * x);
    double z = 1 / (x * x), power = z / x, series = 0;
    for (int k = 0; k < 8; ++k, power *= z) series += kBernoulli[k] * power;
    return result + 1 / x + 0.5 * z + series;
}

double zeta(double x, double q) {
    if (x == 1) return kInf;
    if (x < 1) return kNan;
    if (q <= 0) {
        if (q == std::floor(q)) return kInf;
        if (x != std::floor(x)) return kNan;
    }
    double sum = 0;
    // Direct terms up to a, then Euler-Maclaurin.
    double a = q;
    for (int i = 0; i < 20 || a <= 12; ++i, a += 1) {
        double term = std::pow(a, -x);
        sum += term;
        if (std::fabs(term) < kEps * std::fabs(sum)) return sum;
    }
    sum += std::pow(a, 1 - x) / (x - 1) + 0.5 * std::pow(a, -x);
    double factor = x * std::pow(a, -x - 1), factorial = 2;
    for (int k = 0; k < 8; ++k) {
        sum += kBernoulli[k] / factorial * factor;
        factor *= (x + 2 * k + 1) * (x + 2 * k + 2) / (a * a);
        factorial *= (2 * k + 3) * (2 * k + 4);
    }
    return sum;
}

double polygamma(int order, double x) {
    if (order == 0) return digamma(x);
    if (order == 1) return trigamma(x);
    return (order % 2 ? 1 : -1) * std::exp(std::lgamma(order + 1.0)) * zeta(order + 1, x);
}

double erfcx(double x) {
    if (x < 20) return std::exp(x * x) * std::erfc(x);
    double z = 1 / (2 * x * x), term = 1, sum = 1;
    for (int k = 1; k < 12; ++k) sum += term *= -(2 * k - 1) * z;
    return sum / (x * kSqrtPi);
}

// Solves erfc(y) = p for p in (0, 1] by Newton steps on log(erfc), which is smooth far out.
static double erfcinv_small(double p) {
    double t = std::sqrt(-2 * std::log(p / 2));
    double y = (t - (2.30753 + t * 0.27061) / (1 + t * (0.99229 + t * 0.04481))) / kSqrt2;
    for (int i = 0; i < 6; ++i) {
        double scaled = erfcx(y), value = std::log(scaled) - y * y - std::log(p);
        double slope = -2 / (kSqrtPi * scaled);
        y -= value / slope;
    }
    return y;
}

double erfinv(double x) {
    if (std::isnan(x) || std::fabs(x) > 1) return kNan;
    if (std::fabs(x) == 1) return std::copysign(kInf, x);
    double a = std::fabs(x), y;
    if (a > 0.5) {
        y = erfcinv_small(1 - a);
    } else {
        y = a * kSqrtPi / 2;
        for (int i = 0; i < 8; ++i) y -= (std::erf(y) - a) * kSqrtPi / 2 * std::exp(y * y);
    }
    return std::copysign(y, x);
}

double ndtri(double p) {
    if (std::isnan(p) || p < 0 || p > 1) return kNan;
    if (p == 0) return -kInf;
    if (p == 1) return kInf;
    if (p < 0.25) return -kSqrt2 * erfcinv_small(2 * p);
    return kSqrt2 * erfinv(2 * p - 1);
}

double log_ndtr(double x) {
    double t = x / kSqrt2;
    if (x < -1) return std::log(erfcx(-t) / 2) - t * t;
    return std::log1p(-std::erfc(t) / 2);
}

// The prefactor x^a e^-x / gamma(a + 1) and both ways to sum: the series for P, Lentz' continued
// fraction for Q.
static double lower_series(double a, double x) {
    double term = 1, sum = 1;
    for (int n = 1; n < 10000 && term > sum * kEps; ++n) sum += term *= x / (a + n);
    return sum * std::exp(a * std::log(x) - x - std::lgamma(a + 1));
}
static double upper_fraction(double a, double x) {
    const double tiny = 1e-300;
    double b = x + 1 - a, c = 1 / tiny, d = 1 / b, h = d;
    for (int i = 1; i < 10000; ++i) {
        double an = -i * (i - a);
        b += 2;
        d = an * d + b;
        d = 1 / (std::fabs(d) < tiny ? tiny : d);
        c = b + an / c;
        c = std::fabs(c) < tiny ? tiny : c;
        double step = d * c;
        h *= step;
        if (std::fabs(step - 1) < 1e-16) break;
    }
    return h * std::exp(a * std::log(x) - x - std::lgamma(a));
}

double igamma(double a, double x) {
    if (std::isnan(a) || std::isnan(x) || x < 0 || a < 0) return kNan;
    if (a == 0) return x > 0 ? 1 : kNan;
    if (x == 0) return 0;
    if (std::isinf(a)) return std::isinf(x) ? kNan : 0;
    if (std::isinf(x)) return 1;
    return x < a + 1 ? lower_series(a, x) : 1 - upper_fraction(a, x);
}
double igammac(double a, double x) {
    if (std::isnan(a) || std::isnan(x) || x < 0 || a < 0) return kNan;
    if (a == 0) return x > 0 ? 0 : kNan;
    if (x == 0) return 1;
    if (std::isinf(a)) return std::isinf(x) ? kNan : 1;
    if (std::isinf(x)) return 0;
    return x < a + 1 ? 1 - lower_series(a, x) : upper_fraction(a, x);
}

// exp(-x) I_n(x) for large x (DLMF 10.40.1).
static double scaled_i(int n, double x) {
    double mu = 4.0 * n * n, term = 1, sum = 1;
    for (int k = 1; k < 30; ++k) {
        double next = term * -(mu - (2 * k - 1) * (2 * k - 1)) / (k * 8 * x);
        if (std::fabs(next) >= std::fabs(term)) break;
        sum += term = next;
    }
    return sum / std::sqrt(2 * kPi * x);
}
double bessel_i0e(double x) {
    if (std::isnan(x)) return x;
    x = std::fabs(x);
    return x > 40 ? scaled_i(0, x) : std::exp(-x) * std::cyl_bessel_i(0.0, x);
}
double bessel_i1e(double x) {
    if (std::isnan(x)) return x;
    double a = std::fabs(x);
    double v = a > 40 ? scaled_i(1, a) : std::exp(-a) * std::cyl_bessel_i(1.0, a);
    return x < 0 ? -v : v;
}
double bessel_i0(double x) { return bessel_i0e(x) * std::exp(std::fabs(x)); }
double bessel_i1(double x) { return bessel_i1e(x) * std::exp(std::fabs(x)); }
double bessel_j0(double x) { return ::j0(x); }
double bessel_j1(double x) { return ::j1(x); }
double bessel_y0(double x) { return x == 0 ? -kInf : x < 0 ? kNan : ::y0(x); }
double bessel_y1(double x) { return x == 0 ? -kInf : x <= 0 ? kNan : ::y1(x); }
double bessel_k0(double x) {
    if (x == 0) return kInf;
    return x < 0 || std::isnan(x) ? kNan : x > 700 ? 0 : std::cyl_bessel_k(0.0, x);
}
double bessel_k1(double x) {
    if (x == 0) return kInf;
    return x < 0 || std::isnan(x) ? kNan : x > 700 ? 0 : std::cyl_bessel_k(1.0, x);
}
double spherical_j0(double x) {
    if (std::isinf(x)) return 0;
    if (std::fabs(x) < 0.5) {
        double z = x * x, term = 1, sum = 1;
        for (int k = 1; k < 12; ++k) sum += term *= -z / (2 * k * (2 * k + 1));
        return sum;
    }
    return std::sin(x) / x;
}

// p_{k+1} from p_k and p_{k-1} up to degree n; PyTorch gives 0 for negative degrees.
template <class Step>
static double recur(double x, double degree, double first, double second, const Step& step) {
    auto n = static_cast<long long>(degree);
    if (n < 0) return 0;
    if (n == 0) return first;
    double before = first, now = second;
    for (long long k = 1; k < n && !std::isnan(now); ++k) {
        double next = step(static_cast<double>(k), now, before);
        before = now;
        now = next;
    }
    return now;
}
double chebyshev_t(double x, double n) {
    if (n > 6 && std::fabs(x) < 1) return std::cos(std::trunc(n) * std::acos(x));
    return recur(x, n, 1, x, [x](double, double a, double b) { return 2 * x * a - b; });
}
double chebyshev_u(double x, double n) {
    return recur(x, n, 1, 2 * x, [x](double, double a, double b) { return 2 * x * a - b; });
}
double hermite_h(double x, double n) {
    return recur(x, n, 1, 2 * x,
                 [x](double k, double a, double b) { return 2 * x * a - 2 * k * b; });
}
double laguerre_l(double x, double n) {
    return recur(x, n, 1, 1 - x, [x](double k, double a, double b) {
        return ((2 * k + 1 - x) * a - k * b) / (k + 1);
    });
}
double legendre_p(double x, double n) {
    return recur(x, n, 1, x, [x](double k, double a, double b) {
        return ((2 * k + 1) * x * a - k * b) / (k + 1);
    });
}

}  // namespace ingot::special
