// Element types as numbers; see tensor.h.
#include "ir/tensor.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace ingot {

namespace {

// exponent bits, mantissa bits, and whether the top exponent holds infinities (f8e4m3 has NaN
// only).
struct SmallFloat {
    int exponent, mantissa;
    bool infinities;
};
SmallFloat small_float(DType t) {
    switch (t) {
        case DType::F8E4M3:
            return {4, 3, false};
        case DType::F8E5M2:
            return {5, 2, true};
        case DType::F16:
            return {5, 10, true};
        case DType::BF16:
            return {8, 7, true};
        default:
            throw InternalError("no reduced float");
    }
}

template <class T>
T read(const std::uint8_t* at) {
    T v;
    std::memcpy(&v, at, sizeof v);
    return v;
}
template <class T>
void write(std::uint8_t* at, T v) {
    std::memcpy(at, &v, sizeof v);
}

}  // namespace

std::uint16_t to_bits(float v, DType dtype) {
    const SmallFloat f = small_float(dtype);
    const int bias = (1 << (f.exponent - 1)) - 1;
    const unsigned sign = std::signbit(v) ? 1u << (f.exponent + f.mantissa) : 0u;
    const unsigned top = ((1u << f.exponent) - 1u) << f.mantissa;
    const unsigned nan =
        f.infinities ? top | (1u << (f.mantissa - 1)) : top | ((1u << f.mantissa) - 1u);
    const unsigned largest = f.infinities ? top - 1 : nan - 1;
    if (std::isnan(v)) return static_cast<std::uint16_t>(sign | nan);
    if (std::isinf(v)) return static_cast<std::uint16_t>(sign | (f.infinities ? top : nan));
    double magnitude = std::fabs(static_cast<double>(v));
    if (magnitude == 0) return static_cast<std::uint16_t>(sign);
    int exponent = std::max(std::ilogb(magnitude), 1 - bias);
    // An integer count of units in the last place, ties to even; carries run into the exponent.
    auto units =
        static_cast<std::uint64_t>(std::nearbyint(std::ldexp(magnitude, f.mantissa - exponent)));
    std::uint64_t bits = units + (static_cast<std::uint64_t>(exponent + bias - 1) << f.mantissa);
    if (bits > largest) return static_cast<std::uint16_t>(sign | (f.infinities ? top : nan));
    return static_cast<std::uint16_t>(sign | bits);
}

float from_bits(std::uint16_t bits, DType dtype) {
    const SmallFloat f = small_float(dtype);
    const int bias = (1 << (f.exponent - 1)) - 1;
    const unsigned mantissa = bits & ((1u << f.mantissa) - 1u);
    const unsigned exponent = (bits >> f.mantissa) & ((1u << f.exponent) - 1u);
    const bool negative = (bits >> (f.mantissa + f.exponent)) & 1u;
    const bool top = exponent == (1u << f.exponent) - 1u;
    double v;
    if (top && f.infinities)
        v = mantissa ? NAN : HUGE_VAL;
    else if (top && mantissa == (1u << f.mantissa) - 1u)
        v = NAN;
    else if (exponent == 0)
        v = std::ldexp(mantissa, 1 - bias - f.mantissa);
    else
        v = std::ldexp(mantissa + (1u << f.mantissa),
                       static_cast<int>(exponent) - bias - f.mantissa);
    return static_cast<float>(negative ? -v : v);
}

Num load_num(DType dtype, const std::uint8_t* at) {
    switch (dtype) {
        case DType::Bool:
            return {0, 0, *at != 0};
        case DType::U8:
            return {0, 0, *at};
        case DType::U16:
            return {0, 0, read<std::uint16_t>(at)};
        case DType::U32:
            return {0, 0, read<std::uint32_t>(at)};
        case DType::I8:
            return {0, 0, read<std::int8_t>(at)};
        case DType::I16:
            return {0, 0, read<std::int16_t>(at)};
        case DType::I32:
            return {0, 0, read<std::int32_t>(at)};
        case DType::U64:
        case DType::I64:
            return {0, 0, read<std::int64_t>(at)};
        case DType::F8E4M3:
        case DType::F8E5M2:
            return {from_bits(*at, dtype), 0, 0};
        case DType::F16:
        case DType::BF16:
            return {from_bits(read<std::uint16_t>(at), dtype), 0, 0};
        case DType::F32:
            return {read<float>(at), 0, 0};
        case DType::F64:
            return {read<double>(at), 0, 0};
        case DType::C64:
            return {read<float>(at), read<float>(at + 4), 0};
        case DType::C128:
            return {read<double>(at), read<double>(at + 8), 0};
    }
    return {};
}

void store_num(DType dtype, std::uint8_t* at, Num v) {
    switch (dtype) {
        case DType::Bool:
            *at = v.i != 0;
            return;
        case DType::U8:
        case DType::I8:
            *at = static_cast<std::uint8_t>(v.i);
            return;
        case DType::U16:
        case DType::I16:
            return write(at, static_cast<std::uint16_t>(v.i));
        case DType::U32:
        case DType::I32:
            return write(at, static_cast<std::uint32_t>(v.i));
        case DType::U64:
        case DType::I64:
            return write(at, v.i);
        case DType::F8E4M3:
        case DType::F8E5M2:
            *at = static_cast<std::uint8_t>(to_bits(static_cast<float>(v.re), dtype));
            return;
        case DType::F16:
        case DType::BF16:
            return write(at, to_bits(static_cast<float>(v.re), dtype));
        case DType::F32:
            return write(at, static_cast<float>(v.re));
        case DType::F64:
            return write(at, v.re);
        case DType::C64:
            write(at, static_cast<float>(v.re));
            return write(at + 4, static_cast<float>(v.im));
        case DType::C128:
            write(at, v.re);
            return write(at + 8, v.im);
    }
}

std::int64_t wrap_int(std::int64_t v, DType dtype) {
    switch (dtype) {
        case DType::Bool:
            return v != 0;
        case DType::U8:
            return static_cast<std::uint8_t>(v);
        case DType::U16:
            return static_cast<std::uint16_t>(v);
        case DType::U32:
            return static_cast<std::uint32_t>(v);
        case DType::I8:
            return static_cast<std::int8_t>(v);
        case DType::I16:
            return static_cast<std::int16_t>(v);
        case DType::I32:
            return static_cast<std::int32_t>(v);
        default:
            return v;
    }
}

double round_float(double v, DType dtype) {
    if (dtype == DType::F64 || dtype == DType::C128) return v;
    auto f = static_cast<float>(v);
    return is_reduced_float(dtype) ? from_bits(to_bits(f, dtype), dtype) : f;
}

Num round_num(Num v, DType dtype) {
    if (is_integral(dtype)) return {0, 0, wrap_int(v.i, dtype)};
    return {round_float(v.re, dtype), is_complex(dtype) ? round_float(v.im, dtype) : 0, 0};
}

double to_double(Num v, DType dtype) {
    if (!is_integral(dtype)) return v.re;
    if (dtype == DType::U64) return static_cast<double>(static_cast<std::uint64_t>(v.i));
    return static_cast<double>(v.i);
}

bool is_nonzero(Num v, DType dtype) {
    return is_integral(dtype) ? v.i != 0 : v.re != 0 || (is_complex(dtype) && v.im != 0);
}

Num convert_num(Num v, DType from, DType to) {
    if (to == DType::Bool) return {0, 0, is_nonzero(v, from)};
    if (is_integral(to)) {
        if (is_integral(from)) return {0, 0, wrap_int(v.i, to)};
        // Out of range is undefined in C++ and differs between eager's own paths.
        if (to == DType::U64 && v.re >= 9223372036854775808.0 && v.re < 18446744073709551616.0)
            return {0, 0, static_cast<std::int64_t>(static_cast<std::uint64_t>(v.re))};
        return {0, 0, wrap_int(Scalar(v.re).to_int(), to)};
    }
    if (is_integral(from)) {
        // One rounding: an i64 through a double into a float would have two.
        bool big = from == DType::U64;
        auto u = static_cast<std::uint64_t>(v.i);
        double d = real_type(to) == DType::F64
                       ? to_double(v, from)
                       : (big ? static_cast<float>(u) : static_cast<float>(v.i));
        return {round_float(d, to), 0, 0};
    }
    return round_num({v.re, is_complex(from) ? v.im : 0, 0}, to);
}

Num to_num(const Scalar& s, DType dtype) {
    if (is_integral(dtype)) return {0, 0, wrap_int(s.to_int(), dtype)};
    if (auto* i = std::get_if<std::int64_t>(&s.value))
        return convert_num({0, 0, *i}, DType::I64, dtype);
    auto c = s.to_complex();
    return round_num({c.real(), c.imag(), 0}, dtype);
}

std::int64_t count_of(std::span<const std::int64_t> sizes) {
    std::int64_t n = 1;
    for (std::int64_t s : sizes) n *= s;
    return n;
}

Ints dense_strides(std::span<const std::int64_t> sizes) {
    Ints strides(sizes.size());
    std::int64_t step = 1;
    for (std::size_t i = sizes.size(); i-- > 0;) {
        strides[i] = step;
        step *= sizes[i];
    }
    return strides;
}

void for_each_index(std::span<const std::int64_t> sizes,
                    const std::function<void(const Ints&)>& visit) {
    if (count_of(sizes) == 0) return;
    Ints index(sizes.size(), 0);
    for (;;) {
        visit(index);
        std::size_t d = sizes.size();
        while (d-- > 0) {
            if (++index[d] < sizes[d]) break;
            index[d] = 0;
        }
        if (d == static_cast<std::size_t>(-1)) return;
    }
}

Tensor::Tensor(DType dtype, Ints sizes_in) : dtype(dtype), sizes(std::move(sizes_in)) {
    for (std::int64_t s : sizes) check(s >= 0, "a tensor has a negative size");
    data.resize(static_cast<std::size_t>(numel() * bytes(dtype)));
}
std::int64_t Tensor::numel() const { return count_of(sizes); }
Num Tensor::get(std::int64_t index) const { return load_num(dtype, &data[index * bytes(dtype)]); }
void Tensor::set(std::int64_t index, Num v) { store_num(dtype, &data[index * bytes(dtype)], v); }

}  // namespace ingot
