// Internal to the reference evaluator (reference*.cpp): one prim being evaluated.
#pragma once
#include "ir/reference.h"

namespace ingot::reference {

struct Call {
    Prim prim;
    std::span<const Tensor> x;  // operands
    const Attrs& attrs;
    std::vector<Tensor>& out;  // results, zeros of the right type and sizes
    const SymbolValues& symbol;

    std::int64_t value(Expr e) const { return ingot::evaluate(e, symbol); }
    Ints values(const Sizes& sizes) const {
        Ints out;
        for (Expr e : sizes) out.push_back(value(e));
        return out;
    }
    template <class T>
    const T& attr(std::string_view key) const {
        return attrs.get<T>(key);
    }
    std::int64_t integer(std::string_view key) const { return attrs.get<std::int64_t>(key); }
    const Ints& ints(std::string_view key) const { return attrs.get<Ints>(key); }
    Ints sizes(std::string_view key) const { return values(attrs.get<Sizes>(key)); }
};

/// Families; each fills `out`.
void movement(const Call& c);
void creation(const Call& c);
void complex_view(const Call& c);
void reduction(const Call& c);
void scan(const Call& c);
void sorting(const Call& c);
void indexing(const Call& c);
void stencil(const Call& c);
void contraction(const Call& c);

inline std::int64_t dot(const Ints& a, const Ints& b) {
    std::int64_t s = 0;
    for (std::size_t i = 0; i < a.size(); ++i) s += a[i] * b[i];
    return s;
}
/// Sums of numbers of one type: floats in double, integers wrapping.
struct Total {
    std::complex<double> floating = 0;
    std::uint64_t whole = 0;
    void add(Num v) {
        floating += std::complex<double>(v.re, v.im);
        whole += static_cast<std::uint64_t>(v.i);
    }
    void add_product(Num a, Num b, DType dtype) {
        if (is_complex(dtype))
            floating += std::complex<double>(a.re, a.im) * std::complex<double>(b.re, b.im);
        else
            floating += a.re * b.re;
        whole += static_cast<std::uint64_t>(a.i) * static_cast<std::uint64_t>(b.i);
    }
    Num rounded(DType dtype) const {
        return round_num({floating.real(), floating.imag(), static_cast<std::int64_t>(whole)},
                         dtype);
    }
};
/// Whether a < b in the order of PyTorch's sort: NaN is largest.
bool sorts_before(Num a, Num b, DType dtype);
bool is_nan(Num v, DType dtype);

}  // namespace ingot::reference
