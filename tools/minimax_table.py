# The polynomials: name -> what to fit. `table` and `fit` come from minimax.py.
ln2_half = mp.log(2) / 2 * mp.mpf("1.01")
quarter_turn = mp.pi / 4 * mp.mpf("1.001")


def root(f):
    return lambda s: f(mp.sqrt(s))


def entry(name, fitted, terms, lo, hi, bits):
    f, weight = fitted
    table[name] = lambda n: fit(n, f, range(terms), lo, hi, bits, weight)


tiny = mp.mpf(2) ** -20
small = mp.mpf(2) ** -12

# What is fitted, with the weight that makes the error relative to the whole function:
# exp(x) = 1 + x + x^2 P(x)
exp = (lambda x: (mp.exp(x) - 1 - x) / x**2, lambda x: x * x * mp.exp(-x))
# log(1+f) = f + f^2 (-1/2 + f P(f))
log = (
    lambda f: ((mp.log(1 + f) - f) / f**2 + mp.mpf(1) / 2) / f,
    lambda f: abs(f**3 / mp.log(1 + f)),
)
# tanh(x) = x + x^3 P(x^2)
tanh = (root(lambda x: (mp.tanh(x) / x - 1) / x**2), root(lambda x: x**3 / mp.tanh(x)))
# erf(x) = x + x P(x^2); erf(x) = 1 - exp(x P(x)) for larger x
erf_small = (root(lambda x: mp.erf(x) / x - 1), root(lambda x: x / mp.erf(x)))
erf_large = (lambda t: mp.log(mp.erfc(t)) / t, lambda t: t * mp.erfc(t) / mp.erf(t))
# sin(x) = x + x^3 P(x^2); cos(x) = 1 - x^2/2 + x^4 P(x^2)
sin = (root(lambda x: (mp.sin(x) / x - 1) / x**2), root(lambda x: x**3 / mp.sin(x)))
cos = (
    root(lambda x: ((mp.cos(x) - 1) / x**2 + mp.mpf(1) / 2) / x**2),
    root(lambda x: x**4 / mp.cos(x)),
)
# atan(x) = x + x^3 P(x^2)
atan = (root(lambda x: (mp.atan(x) / x - 1) / x**2), root(lambda x: x**3 / mp.atan(x)))
# erfc(x) = exp(-x^2) P((x - 2) / (x + 2)), 0 <= x <= 10.1
erfcx = lambda x: mp.exp(x * x) * mp.erfc(x)
erfc = (lambda t: erfcx(2 * (1 + t) / (1 - t)), lambda t: 1 / erfcx(2 * (1 + t) / (1 - t)))

entry("kExp32", exp, 5, -ln2_half, ln2_half, 24)
entry("kLog32", log, 9, -0.25, 0.5, 24)
entry("kTanh32", tanh, 7, small, 1, 24)
entry("kErfSmall32", erf_small, 7, small, 1, 24)
entry("kErfLarge32", erf_large, 7, 0.99, 4.0, 24)
entry("kSin32", sin, 3, tiny, quarter_turn**2, 24)
entry("kCos32", cos, 3, small, quarter_turn**2, 24)

# The same for f32 functions in f64 arithmetic; log is accurate enough for pow, whose exponent multiplies its error.
entry("kExpD", exp, 7, -ln2_half, ln2_half, 53)
entry("kLogD", log, 15, -0.25, 0.5, 53)
entry("kSinD", sin, 5, tiny, quarter_turn**2, 53)
entry("kCosD", cos, 4, small, quarter_turn**2, 53)
entry("kAtanD", atan, 13, tiny, 1, 53)
entry("kErfcD", erfc, 15, -1, (mp.mpf("10.1") - 2) / (mp.mpf("10.1") + 2), 53)

# The functions of math_direct.cpp for f64.
entry("kExp64", exp, 11, -ln2_half, ln2_half, 53)
entry("kLog64", log, 20, -0.25, 0.5, 53)
entry("kTanh64", tanh, 16, small, 1, 53)
entry("kErfSmall64", erf_small, 15, small, 1, 53)
entry("kErfLarge64", erf_large, 18, 0.99, 6.0, 53)
entry("kSin64", sin, 6, tiny, quarter_turn**2, 53)
entry("kCos64", cos, 6, small, quarter_turn**2, 53)
