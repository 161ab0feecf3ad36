# The polynomials: name -> what to fit. `table` and `fit` come from minimax.py.
ln2_half = mp.log(2) / 2 * mp.mpf("1.01")
quarter_turn = mp.pi / 4 * mp.mpf("1.001")


def root(f):
    return lambda s: f(mp.sqrt(s))


def entry(name, f, terms, lo, hi, bits, weight):
    table[name] = lambda n: fit(n, f, range(terms), lo, hi, bits, weight)


tiny = mp.mpf(2) ** -20
small = mp.mpf(2) ** -12

# exp(x) = 1 + x + x^2 P(x)
entry(
    "kExp32",
    lambda x: (mp.exp(x) - 1 - x) / x**2,
    5,
    -ln2_half,
    ln2_half,
    24,
    lambda x: x * x * mp.exp(-x),
)
# log(1+f) = f + f^2 (-1/2 + f P(f))
entry(
    "kLog32",
    lambda f: ((mp.log(1 + f) - f) / f**2 + mp.mpf(1) / 2) / f,
    9,
    -0.25,
    0.5,
    24,
    lambda f: abs(f**3 / mp.log(1 + f)),
)
# tanh(x) = x + x^3 P(x^2)
entry(
    "kTanh32",
    root(lambda x: (mp.tanh(x) / x - 1) / x**2),
    7,
    small,
    1,
    24,
    root(lambda x: x**3 / mp.tanh(x)),
)
# erf(x) = x + x P(x^2); erf(x) = 1 - exp(x P(x)) for larger x
entry(
    "kErfSmall32", root(lambda x: mp.erf(x) / x - 1), 7, small, 1, 24, root(lambda x: x / mp.erf(x))
)
entry(
    "kErfLarge32",
    lambda t: mp.log(mp.erfc(t)) / t,
    7,
    0.99,
    4.0,
    24,
    lambda t: t * mp.erfc(t) / mp.erf(t),
)
# sin(x) = x + x^3 P(x^2); cos(x) = 1 - x^2/2 + x^4 P(x^2)
entry(
    "kSin32",
    root(lambda x: (mp.sin(x) / x - 1) / x**2),
    3,
    tiny,
    quarter_turn**2,
    24,
    root(lambda x: x**3 / mp.sin(x)),
)
entry(
    "kCos32",
    root(lambda x: ((mp.cos(x) - 1) / x**2 + mp.mpf(1) / 2) / x**2),
    3,
    small,
    quarter_turn**2,
    24,
    root(lambda x: x**4 / mp.cos(x)),
)

# The same for f32 functions in f64 arithmetic; log is accurate enough for pow, whose exponent multiplies its error.
entry(
    "kExpD",
    lambda x: (mp.exp(x) - 1 - x) / x**2,
    7,
    -ln2_half,
    ln2_half,
    53,
    lambda x: x * x * mp.exp(-x),
)
entry(
    "kLogD",
    lambda f: ((mp.log(1 + f) - f) / f**2 + mp.mpf(1) / 2) / f,
    15,
    -0.25,
    0.5,
    53,
    lambda f: abs(f**3 / mp.log(1 + f)),
)
entry(
    "kSinD",
    root(lambda x: (mp.sin(x) / x - 1) / x**2),
    5,
    tiny,
    quarter_turn**2,
    53,
    root(lambda x: x**3 / mp.sin(x)),
)
entry(
    "kCosD",
    root(lambda x: ((mp.cos(x) - 1) / x**2 + mp.mpf(1) / 2) / x**2),
    4,
    small,
    quarter_turn**2,
    53,
    root(lambda x: x**4 / mp.cos(x)),
)
# atan(x) = x + x^3 P(x^2)
entry(
    "kAtanD",
    root(lambda x: (mp.atan(x) / x - 1) / x**2),
    13,
    tiny,
    1,
    53,
    root(lambda x: x**3 / mp.atan(x)),
)
# erfc(x) = exp(-x^2) P((x - 2) / (x + 2)), 0 <= x <= 10.1
erfcx = lambda x: mp.exp(x * x) * mp.erfc(x)
entry(
    "kErfcD",
    lambda t: erfcx(2 * (1 + t) / (1 - t)),
    15,
    -1,
    (mp.mpf("10.1") - 2) / (mp.mpf("10.1") + 2),
    53,
    lambda t: 1 / erfcx(2 * (1 + t) / (1 - t)),
)

# The functions of math_direct.cpp for f64.
entry(
    "kExp64",
    lambda x: (mp.exp(x) - 1 - x) / x**2,
    11,
    -ln2_half,
    ln2_half,
    53,
    lambda x: x * x * mp.exp(-x),
)
entry(
    "kLog64",
    lambda f: ((mp.log(1 + f) - f) / f**2 + mp.mpf(1) / 2) / f,
    20,
    -0.25,
    0.5,
    53,
    lambda f: abs(f**3 / mp.log(1 + f)),
)
entry(
    "kTanh64",
    root(lambda x: (mp.tanh(x) / x - 1) / x**2),
    16,
    small,
    1,
    53,
    root(lambda x: x**3 / mp.tanh(x)),
)
entry(
    "kErfSmall64",
    root(lambda x: mp.erf(x) / x - 1),
    15,
    small,
    1,
    53,
    root(lambda x: x / mp.erf(x)),
)
entry(
    "kErfLarge64",
    lambda t: mp.log(mp.erfc(t)) / t,
    18,
    0.99,
    6.0,
    53,
    lambda t: t * mp.erfc(t) / mp.erf(t),
)
entry(
    "kSin64",
    root(lambda x: (mp.sin(x) / x - 1) / x**2),
    6,
    tiny,
    quarter_turn**2,
    53,
    root(lambda x: x**3 / mp.sin(x)),
)
entry(
    "kCos64",
    root(lambda x: ((mp.cos(x) - 1) / x**2 + mp.mpf(1) / 2) / x**2),
    6,
    small,
    quarter_turn**2,
    53,
    root(lambda x: x**4 / mp.cos(x)),
)
