// Special functions in double precision for the reference evaluator: accurate to a few units in
// 1e-13, checked against published values in tests. Domains and limits follow PyTorch.
#pragma once

namespace ingot::special {

double digamma(double x);
double trigamma(double x);
double polygamma(int order, double x);
/// Hurwitz zeta function.
double zeta(double x, double q);
double erfinv(double x);
double erfcx(double x);
double ndtri(double p);
double log_ndtr(double x);
double igamma(double a, double x);
double igammac(double a, double x);
double bessel_i0(double x);
double bessel_i0e(double x);
double bessel_i1(double x);
double bessel_i1e(double x);
double bessel_j0(double x);
double bessel_j1(double x);
double bessel_y0(double x);
double bessel_y1(double x);
double bessel_k0(double x);
double bessel_k1(double x);
double spherical_j0(double x);
double chebyshev_t(double x, double n);
double chebyshev_u(double x, double n);
double hermite_h(double x, double n);
double laguerre_l(double x, double n);
double legendre_p(double x, double n);

}  // namespace ingot::special
