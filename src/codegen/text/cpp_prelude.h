// The C++ prelude of generated text: PyTorch's meaning of each prim as a function template, plus
// the storage types.
#pragma once
#include <string_view>

namespace ingot {

inline constexpr std::string_view kCppPrelude =
    R"cpp(#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

          namespace {
          template <class To, class From>
          inline To bitcast(From x) {
              static_assert(sizeof(To) == sizeof(From));
              To y;
              std::memcpy(&y, &x, sizeof y);
              return y;
          }
          inline int64_t floor_div(int64_t a, int64_t b) {
              int64_t q = a / b;
              return (a % b != 0 && ((a < 0) != (b < 0))) ? q - 1 : q;
          }
          inline int64_t floor_mod(int64_t a, int64_t b) { return a - b * floor_div(a, b); }

          // Storage of bf16, f16 and f8; arithmetic happens on float.
          struct bf16 {
              uint16_t bits;
          };
          inline float load(bf16 v) { return bitcast<float>(uint32_t(v.bits) << 16); }
          template <class T>
          inline T store_as(float x);
          template <>
          inline bf16 store_as<bf16>(float x) {
              if (std::isnan(x)) return {0x7fc0};
              uint32_t u = bitcast<uint32_t>(x);
              return {uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16)};
          }
          using f16 = _Float16;
          inline float load(f16 v) { return float(v); }
          template <>
          inline f16 store_as<f16>(float x) {
              return f16(x);
          }
          template <int Mantissa, int Bias, bool Infinite>
          struct Float8 {
              uint8_t bits;
          };
          using f8e4m3 = Float8<3, 7, false>;
          using f8e5m2 = Float8<2, 15, true>;
          template <int M, int B, bool I>
          inline float load(Float8<M, B, I> v) {
              int exponent = (v.bits & 0x7f) >> M, mantissa = v.bits & ((1 << M) - 1);
              float sign = v.bits & 0x80 ? -1.f : 1.f;
              if (I && exponent == (1 << (7 - M)) - 1) return mantissa ? NAN : sign * INFINITY;
              if (!I && (v.bits & 0x7f) == 0x7f) return NAN;
              if (exponent == 0) return sign * std::ldexp(float(mantissa), 1 - B - M);
              return sign * std::ldexp(float(mantissa | (1 << M)), exponent - B - M);
          }
          template <int M, int B, bool I>
          inline Float8<M, B, I> to_float8(float x) {
              uint8_t sign = std::signbit(x) ? 0x80 : 0;
              float a = std::fabs(x);
              const int top = I ? ((1 << (7 - M)) - 1) << M : 0x7f;  // the first code that is not a
                                                                     // number
              if (std::isnan(x)) return {uint8_t(sign | 0x7f)};
              if (std::isinf(x)) return {uint8_t(sign | top)};
              int exponent = 0;
              std::frexp(a, &exponent);
              exponent = std::max(exponent - 1, 1 - B);
              int code = int(std::nearbyint(std::ldexp(a, M - exponent)));
              code += (exponent + B - 1) << M;
              return {uint8_t(sign | std::min(code, top))};
          }
          template <>
          inline f8e4m3 store_as<f8e4m3>(float x) {
              return to_float8<3, 7, false>(x);
          }
          template <>
          inline f8e5m2 store_as<f8e5m2>(float x) {
              return to_float8<2, 15, true>(x);
          }
          template <class T>
          inline float rounded(float x) {
              return load(store_as<T>(x));
          }

          template <class To, class From>
          inline To convert(From x) {
              if constexpr (std::is_same_v<To, bool>)
                  return x != From(0);
              else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
                  // As eager on x86: through int64 where the type is narrower; out of range wraps
                  // there.
                  if (std::isnan(x) || x >= From(9223372036854775808.0) || x < From(-9223372036854775808.0))
                      return To(std::numeric_limits<int64_t>::min());
                  return To(int64_t(x));
              } else
                  return To(x);
          }
          inline int64_t p_philox(int64_t place, int64_t seed, int64_t offset, uint64_t threads,
                                  uint64_t width) {
              uint64_t unit = uint64_t(place) / width, thread = unit % threads, turn = unit / threads;
              uint64_t drawn = width == 1 ? turn : turn * (width == 2 ? 4 : width) + uint64_t(place) % width;
              uint64_t block = (uint64_t(offset) >> 2) + (drawn >> 2);
              uint32_t c[4] = {uint32_t(block), uint32_t(block >> 32), uint32_t(thread),
                               uint32_t(thread >> 32)};
              uint32_t key[2] = {uint32_t(seed), uint32_t(uint64_t(seed) >> 32)};
              for (int round = 0; round < 10; ++round) {
                  uint64_t x = uint64_t(0xD2511F53u) * c[0], y = uint64_t(0xCD9E8D57u) * c[2];
                  uint32_t next[4] = {uint32_t(y >> 32) ^ c[1] ^ key[0], uint32_t(y),
                                      uint32_t(x >> 32) ^ c[3] ^ key[1], uint32_t(x)};
                  std::copy(next, next + 4, c);
                  key[0] += 0x9E3779B9u;
                  key[1] += 0xBB67AE85u;
              }
              return c[drawn & 3];
          }

          template <class T>
          inline T convert_real(std::complex<T> x) {
              return x.real();
          }

          template <class T>
          constexpr bool is_complex = false;
          template <class T>
          constexpr bool is_complex<std::complex<T>> = true;
          template <class T>
          constexpr bool is_float = std::is_floating_point_v<T>;
          template <class T>
          inline bool nan(T x) {
              if constexpr (is_float<T>)
                  return std::isnan(x);
              else
                  return false;
          }

          template <class T>
          inline T p_add(T a, T b) {
              if constexpr (std::is_same_v<T, bool>)
                  return a || b;
              else if constexpr (std::is_integral_v<T>)
                  return T(std::make_unsigned_t<T>(a) + std::make_unsigned_t<T>(b));
              else
                  return a + b;
          }
          template <class T>
          inline T p_sub(T a, T b) {
              if constexpr (std::is_same_v<T, bool>)
                  return a != b;
              else if constexpr (std::is_integral_v<T>)
                  return T(std::make_unsigned_t<T>(a) - std::make_unsigned_t<T>(b));
              else
                  return a - b;
          }
          template <class T>
          inline T p_mul(T a, T b) {
              if constexpr (std::is_same_v<T, bool>)
                  return a && b;
              else if constexpr (std::is_integral_v<T>)
                  return T(uint64_t(a) * uint64_t(b));
              else
                  return a * b;
          }
          template <class T>
          inline T p_div(T a, T b) {
              return a / b;
          }
          template <class T>
          inline T p_neg(T a) {
              if constexpr (std::is_integral_v<T>)
                  return T(0 - uint64_t(a));
              else
                  return -a;
          }
          template <class T>
          inline auto p_abs(T a) {
              if constexpr (std::is_unsigned_v<T>)
                  return a;
              else if constexpr (std::is_integral_v<T>)
                  return a < 0 ? p_neg(a) : a;
              else
                  return std::abs(a);
          }
          template <class T>
          inline T p_trunc_div(T a, T b) {
              if constexpr (is_float<T>)
                  return std::trunc(a / b);
              else if (b == 0)
                  return 0;
              else if constexpr (std::is_signed_v<T>) {
                  if (b == T(-1)) return p_neg(a);
                  return a / b;
              } else
                  return a / b;
          }
          template <class T>
          inline T p_floor_div(T a, T b) {
              if constexpr (is_float<T>) {
                  if (b == 0) return a / b;
                  T m = std::fmod(a, b), d = (a - m) / b;
                  if (m != 0 && (b < 0) != (m < 0)) d -= 1;
                  if (d == 0) return std::copysign(T(0), a / b);
                  T f = std::floor(d);
                  return d - f > T(0.5) ? f + 1 : f;
              } else if (b == 0)
                  return 0;
              else if constexpr (std::is_signed_v<T>) {
                  if (b == T(-1)) return p_neg(a);
                  T q = a / b;
                  return (a % b != 0 && ((a < 0) != (b < 0))) ? q - 1 : q;
              } else
                  return a / b;
          }
          template <class T>
          inline T p_fmod(T a, T b) {
              if constexpr (is_float<T>)
                  return std::fmod(a, b);
              else if (b == 0 || b == T(-1))
                  return 0;
              else
                  return a % b;
          }
          template <class T>
          inline T p_remainder(T a, T b) {
              if constexpr (is_float<T>) {
                  T m = std::fmod(a, b);
                  return m != 0 && (b < 0) != (m < 0) ? m + b : m;
              } else if (b == 0)
                  return 0;
              else if constexpr (std::is_signed_v<T>) {
                  if (b == T(-1)) return 0;
                  T m = a % b;
                  return m != 0 && ((m < 0) != (b < 0)) ? m + b : m;
              } else
                  return a % b;
          }
          template <class T>
          inline T p_pow(T a, T b) {
              if constexpr (std::is_integral_v<T>) {
                  if constexpr (std::is_signed_v<T>)
                      if (b < 0) return a == 1 ? 1 : a == T(-1) ? (b % 2 ? T(-1) : T(1)) : T(0);
                  uint64_t r = 1, x = uint64_t(a);
                  for (uint64_t e = uint64_t(b); e; e >>= 1) {
                      if (e & 1) r *= x;
                      x *= x;
                  }
                  return T(r);
              } else
                  return std::pow(a, b);
          }
          template <class T>
          inline T p_maximum(T a, T b) {
              if (nan(a)) return a;
              if (nan(b)) return b;
              return a < b ? b : a;
          }
          template <class T>
          inline T p_minimum(T a, T b) {
              if (nan(a)) return a;
              if (nan(b)) return b;
              return b < a ? b : a;
          }
          template <class T>
          inline T p_fmax(T a, T b) {
              if constexpr (is_float<T>)
                  return std::fmax(a, b);
              else
                  return std::max(a, b);
          }
          template <class T>
          inline T p_fmin(T a, T b) {
              if constexpr (is_float<T>)
                  return std::fmin(a, b);
              else
                  return std::min(a, b);
          }
          template <class T>
          inline T p_clamp(T x, T lo, T hi) {
              return p_minimum(p_maximum(x, lo), hi);
          }
          template <class T>
          inline T p_relu(T x) {
              return nan(x) ? x : x > 0 ? x : T(0);
          }
          template <class T>
          inline T p_lerp(T a, T b, T w) {
              return std::abs(w) < 0.5 ? a + w * (b - a) : b - (b - a) * (T(1) - w);
          }
          template <class T>
          inline T p_fma(T a, T b, T c) {
              if constexpr (is_float<T>)
                  return std::fma(a, b, c);
              else
                  return a * b + c;
          }
          template <class T>
          inline T p_sigmoid(T x) {
              return T(1) / (T(1) + std::exp(-x));
          }
          template <class T>
          inline T p_reciprocal(T x) {
              return T(1) / x;
          }
          template <class T>
          inline T p_rsqrt(T x) {
              return T(1) / std::sqrt(x);
          }
          template <class T>
          inline T p_sign(T x) {
              if constexpr (is_complex<T>)
                  return x == T(0) ? x : x / std::abs(x);
              else if constexpr (std::is_unsigned_v<T>)
                  return x != 0;
              else
                  return nan(x) ? T(0) * 0 : T((x > 0) - (x < 0));
          }
          template <class T>
          inline bool p_signbit(T x) {
              if constexpr (std::is_unsigned_v<T>)
                  return false;
              else
                  return std::signbit(x);
          }
          template <class T>
          inline bool p_isnan(T x) {
              if constexpr (is_complex<T>)
                  return std::isnan(x.real()) || std::isnan(x.imag());
              else
                  return nan(x);
          }
          template <class T>
          inline bool p_isinf(T x) {
              if constexpr (is_complex<T>)
                  return std::isinf(x.real()) || std::isinf(x.imag());
              else if constexpr (is_float<T>)
                  return std::isinf(x);
              else
                  return false;
          }
          template <class T>
          inline bool p_isfinite(T x) {
              return !p_isnan(x) && !p_isinf(x);
          }
          template <class T>
          inline T p_floor(T x) {
              if constexpr (is_float<T>)
                  return std::floor(x);
              else
                  return x;
          }
          template <class T>
          inline T p_ceil(T x) {
              if constexpr (is_float<T>)
                  return std::ceil(x);
              else
                  return x;
          }
          template <class T>
          inline T p_trunc(T x) {
              if constexpr (is_float<T>)
                  return std::trunc(x);
              else
                  return x;
          }
          template <class T>
          inline T p_round(T x) {
              if constexpr (is_float<T>)
                  return std::nearbyint(x);
              else
                  return x;
          }
          template <class T>
          inline T p_round_decimals(T x, int64_t d) {
              if constexpr (is_float<T>) {
                  T p = std::pow(T(10), T(std::abs(d)));
                  return d < 0 ? std::nearbyint(x / p) * p : std::nearbyint(x * p) / p;
              } else
                  return x;
          }
          template <class T>
          inline T p_frac(T x) {
              return x - std::trunc(x);
          }
          template <class T>
          inline T p_exp2(T x) {
              if constexpr (is_complex<T>)
                  return std::exp(x * T(0.69314718055994530942));
              else
                  return std::exp2(x);
          }
          template <class T>
          inline T p_log2(T x) {
              if constexpr (is_complex<T>)
                  return std::log(x) / T(0.69314718055994530942);
              else
                  return std::log2(x);
          }
          template <class T>
          inline T p_bitwise_not(T x) {
              if constexpr (std::is_same_v<T, bool>)
                  return !x;
              else
                  return T(~x);
          }
          template <class T>
          inline T p_shift_left(T a, T b) {
              using U = std::make_unsigned_t<T>;
              if (U(b) >= sizeof(T) * 8) return 0;
              return T(U(a) << b);
          }
          template <class T>
          inline T p_shift_right(T a, T b) {
              using U = std::make_unsigned_t<T>;
              if (U(b) >= sizeof(T) * 8) return a < 0 ? T(-1) : T(0);
              return T(a >> b);
          }
          template <class T>
          inline T p_gcd(T a, T b) {
              a = p_abs(a);
              b = p_abs(b);
              while (b != 0) {
                  T t = a % b;
                  a = b;
                  b = t;
              }
              return a;
          }
          template <class T>
          inline T p_lcm(T a, T b) {
              T g = p_gcd(a, b);
              return g == 0 ? T(0) : p_abs(T(a / g * b));
          }
          template <class T>
          inline T p_xlogy(T a, T b) {
              return nan(b) ? b : a == 0 ? T(0) : a * std::log(b);
          }
          template <class T>
          inline T p_xlog1py(T a, T b) {
              return nan(b) ? b : a == 0 ? T(0) : a * std::log1p(b);
          }
          template <class T>
          inline T p_sinc(T x) {
              if (x == T(0)) return T(1);
              T y = T(3.14159265358979323846) * x;
              return std::sin(y) / y;
          }
          template <class T>
          inline T p_spherical_bessel_j0(T x) {
              if (std::isinf(x)) return 0;
              return x == 0 ? T(1) : std::sin(x) / x;
          }
          template <class T>
          inline T p_popcount(T x) {
              return T(__builtin_popcountll(uint64_t(x) & (~uint64_t(0) >> (64 - 8 * sizeof(T)))));
          }
          template <class T>
          inline auto p_angle(T x) {
              if constexpr (is_complex<T>)
                  return std::arg(x);
              else
                  return nan(x) ? x : x < 0 ? T(3.14159265358979323846) : T(0);
          }
          template <class T>
          inline auto p_real(T x) {
              if constexpr (is_complex<T>)
                  return x.real();
              else
                  return x;
          }
          template <class T>
          inline auto p_imag(T x) {
              if constexpr (is_complex<T>)
                  return x.imag();
              else
                  return T(0);
          }
          template <class T>
          inline T p_conj(T x) {
              if constexpr (is_complex<T>)
                  return std::conj(x);
              else
                  return x;
          }
          template <class T>
          inline std::complex<T> p_complex(T a, T b) {
              return {a, b};
          }

          // Reductions keep the first NaN and, for arg reductions, the smallest index of the best
          // value.
          template <class T>
          inline bool better_max(T a, int64_t i, T b, int64_t j) {
              if (nan(b)) return nan(a) && i < j;
              if (nan(a)) return true;
              return a > b || (a == b && i < j);
          }
          template <class T>
          inline bool better_min(T a, int64_t i, T b, int64_t j) {
              if (nan(b)) return nan(a) && i < j;
              if (nan(a)) return true;
              return a < b || (a == b && i < j);
          }
          template <class T>
          constexpr T lowest() {
              if constexpr (is_float<T>)
                  return -std::numeric_limits<T>::infinity();
              else
                  return std::numeric_limits<T>::lowest();
          }
          template <class T>
          constexpr T highest() {
              if constexpr (is_float<T>)
                  return std::numeric_limits<T>::infinity();
              else
                  return std::numeric_limits<T>::max();
          }
          }  // namespace
    )cpp";

}  // namespace ingot
