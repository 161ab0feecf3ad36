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
entry("kExpF", lambda x: (mp.exp(x) - 1 - x) / x**2, 5, -ln2_half, ln2_half, 24, lambda x: x * x * mp.exp(-x))
# log(1+f) = f + f^2 (-1/2 + f P(f))
entry("kLogF", lambda f: ((mp.log(1 + f) - f) / f**2 + mp.mpf(1) / 2) / f, 9, -0.25, 0.5, 24,
      lambda f: abs(f**3 / mp.log(1 + f)))
# tanh(x) = x + x^3 P(x^2)
entry("kTanhF", root(lambda x: (mp.tanh(x) / x - 1) / x**2), 5, small, mp.mpf("0.625") ** 2, 24,
      root(lambda x: x**3 / mp.tanh(x)))
# erf(x) = x + x P(x^2); erf(x) = 1 - exp(x P(x)) for larger x
entry("kErfSmallF", root(lambda x: mp.erf(x) / x - 1), 7, small, mp.mpf("0.93") ** 2, 24, root(lambda x: x / mp.erf(x)))
entry("kErfLargeF", lambda t: mp.log(mp.erfc(t)) / t, 7, 0.92, 4.0, 24, lambda t: t * mp.erfc(t) / mp.erf(t))
# sin(x) = x + x^3 P(x^2); cos(x) = 1 + x^2 P(x^2)
entry("kSinF", root(lambda x: (mp.sin(x) / x - 1) / x**2), 3, tiny, quarter_turn**2, 24, root(lambda x: x**3 / mp.sin(x)))
entry("kCosF", root(lambda x: (mp.cos(x) - 1) / x**2), 4, small, quarter_turn**2, 24, root(lambda x: x**2 / mp.cos(x)))
