// Rules on pointwise prims; see simplify.cpp for what exact means.
#include <bit>
#include <cmath>

#include "ir/reference.h"
#include "passes/simplify_rules.h"

namespace ingot::simplify_rules {

namespace {

// Every value of `from` is a value of `to`.
bool embeds(DType from, DType to) {
    if (from == to) return true;
    auto digits = [](DType t) {
        switch (t) {
            case DType::F8E5M2:
                return 3;
            case DType::F8E4M3:
                return 4;
            case DType::BF16:
                return 8;
            case DType::F16:
                return 11;
            case DType::F32:
            case DType::C64:
                return 24;
            default:
                return 53;
        }
    };
    if (is_complex(from)) return is_complex(to) && digits(from) <= digits(to);
    if (is_float(from)) {
        if (is_integral(to) || digits(from) > digits(to)) return false;
        // Also the exponents: bf16 has f32's, f16 and f8 have smaller ones.
        return bytes(real_type(to)) >= 4 || to == from || from == DType::F8E5M2 ||
               from == DType::F8E4M3;
    }
    int value_bits = from == DType::Bool ? 1 : 8 * bytes(from) - (is_signed_int(from) ? 1 : 0);
    if (is_float(to) || is_complex(to))
        return value_bits <= digits(to) && bytes(real_type(to)) >= 4;
    if (to == DType::Bool) return false;
    if (is_signed_int(from) && !is_signed_int(to)) return false;
    return value_bits <= 8 * bytes(to) - (is_signed_int(to) ? 1 : 0);
}

std::optional<ValueId> convert(const Site& s) {
    const DType from = s.out.type(s.x[0]).dtype, to = s.type.dtype;
    if (from == to) return s.x[0];
    if (const Node* inner = s.out.made_by(s.x[0], Prim::Convert)) {
        // x -> from -> to, where x -> from loses nothing.
        ValueId x = inner->operands[0];
        if (embeds(s.out.type(x).dtype, from))
            return s.out.emit(Prim::Convert, {x}, {{"dtype", to}});
    }
    return std::nullopt;
}

// f(f(x)) for involutions and idempotent functions.
std::optional<ValueId> repeated(const Site& s) {
    const Node* inner = s.out.made_by(s.x[0], s.prim);
    if (inner == nullptr) return std::nullopt;
    switch (s.prim) {
        case Prim::Neg:
        case Prim::BitwiseNot:
        case Prim::Conj:
            return inner->operands[0];
        case Prim::LogicalNot:
            if (s.out.type(inner->operands[0]).dtype == DType::Bool) return inner->operands[0];
            return std::nullopt;
        case Prim::Abs:
        case Prim::Ceil:
        case Prim::Floor:
        case Prim::Relu:
        case Prim::Round:
        case Prim::Trunc:
            return s.x[0];
        default:
            return std::nullopt;
    }
}

// Where both have a value of all elements: the number itself.
struct Constants {
    std::optional<Num> a, b;
    DType dtype;
    bool is(const std::optional<Num>& n, double v) const {
        if (!n) return false;
        if (is_integral(dtype)) return n->i == static_cast<std::int64_t>(v);
        return n->re == v && n->im == 0 && std::signbit(n->re) == std::signbit(v);
    }
    bool is_zero(const std::optional<Num>& n) const {
        return n && (is_integral(dtype) ? n->i == 0 : n->re == 0 && n->im == 0);
    }
};

// x + -0, x - 0: what leaves every float as it is, the sign of zeros too.
std::optional<ValueId> sum(const Site& s, const Constants& c) {
    const bool integral = is_integral(c.dtype), complex = is_complex(c.dtype);
    if (s.prim == Prim::Add) {
        if (integral ? c.is_zero(c.b) : !complex && c.is(c.b, -0.0)) return s.x[0];
        if (integral ? c.is_zero(c.a) : !complex && c.is(c.a, -0.0)) return s.x[1];
        // a + -b
        if (const Node* n = s.out.made_by(s.x[1], Prim::Neg))
            return s.out.emit(Prim::Sub, {s.x[0], n->operands[0]});
        return std::nullopt;
    }
    if (c.dtype == DType::Bool) return std::nullopt;
    if (integral ? c.is_zero(c.b) : !complex && c.is(c.b, 0.0)) return s.x[0];
    if (integral && s.x[0] == s.x[1]) return s.out.full(s.type, std::int64_t{0});
    if (const Node* n = s.out.made_by(s.x[1], Prim::Neg))
        return s.out.emit(Prim::Add, {s.x[0], n->operands[0]});
    return std::nullopt;
}

std::optional<ValueId> product(const Site& s, const Constants& c) {
    // Of complex numbers an infinite part times the zero of 1 + 0i is NaN.
    if (is_complex(c.dtype)) return std::nullopt;
    if (c.is(c.b, 1)) return s.x[0];
    if (c.is(c.a, 1)) return s.x[1];
    if (is_unsigned_int(c.dtype) || c.dtype == DType::Bool) return std::nullopt;
    if (c.is(c.b, -1)) return s.out.emit(Prim::Neg, {s.x[0]});
    if (c.is(c.a, -1)) return s.out.emit(Prim::Neg, {s.x[1]});
    if (is_integral(c.dtype) && (c.is_zero(c.a) || c.is_zero(c.b)))
        return s.out.full(s.type, std::int64_t{0});
    return std::nullopt;
}

// Division by a power of two is a multiplication: its reciprocal is exact.
std::optional<ValueId> quotient(const Site& s, const Constants& c) {
    if (!c.b || is_complex(c.dtype)) return std::nullopt;
    if (c.is(c.b, 1)) return s.x[0];
    int exponent;
    bool power = std::fabs(std::frexp(c.b->re, &exponent)) == 0.5;
    double reciprocal = 1 / c.b->re;
    // Both the number and its reciprocal must be normal in the element type.
    int limit = bytes(c.dtype) == 8                                   ? 1000
                : c.dtype == DType::F16                               ? 13
                : is_reduced_float(c.dtype) && c.dtype != DType::BF16 ? 5
                                                                      : 120;
    if (!power || std::abs(exponent) > limit) return std::nullopt;
    return s.out.emit(Prim::Mul, {s.x[0], s.out.full(s.out.type(s.x[1]), reciprocal)});
}

// What PyTorch's own kernels do with these exponents.
std::optional<ValueId> power(const Site& s, const Constants& c) {
    if (!c.b || is_complex(c.dtype) || c.dtype == DType::Bool) return std::nullopt;
    ValueId x = s.x[0];
    if (c.is(c.b, 1)) return x;
    if (c.is(c.b, 2)) return s.out.emit(Prim::Mul, {x, x});
    // Two roundings where reduced floats have one.
    if (c.is(c.b, 3) && !is_reduced_float(c.dtype))
        return s.out.emit(Prim::Mul, {s.out.emit(Prim::Mul, {x, x}), x});
    if (!is_float(c.dtype)) return std::nullopt;
    if (c.is(c.b, 0.5)) return s.out.emit(Prim::Sqrt, {x});
    if (c.is(c.b, -0.5)) return s.out.emit(Prim::Rsqrt, {x});
    if (c.is(c.b, -1)) return s.out.emit(Prim::Reciprocal, {x});
    return std::nullopt;
}

std::optional<ValueId> bits(const Site& s, const Constants& c) {
    if (s.x[0] == s.x[1] && s.prim != Prim::BitwiseXor) return s.x[0];
    if (!is_integral(c.dtype)) return std::nullopt;
    auto all_ones = [&](const std::optional<Num>& n) {
        return n && wrap_int(n->i, c.dtype) == wrap_int(-1, c.dtype);
    };
    for (int side = 0; side < 2; ++side) {
        const auto& n = side ? c.a : c.b;
        ValueId other = s.x[side ? 1 : 0], constant = s.x[side ? 0 : 1];
        switch (s.prim) {
            case Prim::BitwiseAnd:
                if (all_ones(n)) return other;
                if (c.is_zero(n)) return constant;
                break;
            case Prim::BitwiseOr:
                if (c.is_zero(n)) return other;
                if (all_ones(n)) return constant;
                break;
            default:
                if (c.is_zero(n)) return other;
        }
    }
    return std::nullopt;
}

// Logical operators on bools are the bitwise ones, which have more rules.
std::optional<ValueId> logical(const Site& s, const Constants& c) {
    if (c.dtype != DType::Bool) return std::nullopt;
    Prim p = s.prim == Prim::LogicalAnd  ? Prim::BitwiseAnd
             : s.prim == Prim::LogicalOr ? Prim::BitwiseOr
                                         : Prim::BitwiseXor;
    return s.out.emit(p, s.x);
}

std::optional<ValueId> select(const Site& s) {
    if (s.x[1] == s.x[2]) return s.x[1];
    if (auto c = s.out.number(s.x[0])) return c->i ? s.x[1] : s.x[2];
    if (const Node* n = s.out.made_by(s.x[0], Prim::LogicalNot))
        if (s.out.type(n->operands[0]).dtype == DType::Bool)
            return s.out.emit(Prim::Select, {n->operands[0], s.x[2], s.x[1]});
    return std::nullopt;
}

std::optional<ValueId> clamp(const Site& s) {
    auto low = s.out.number(s.x[1]), high = s.out.number(s.x[2]);
    if (!is_float(s.type.dtype)) return std::nullopt;
    bool no_low = low && low->re == -HUGE_VAL, no_high = high && high->re == HUGE_VAL;
    if (no_low && no_high) return s.x[0];
    if (no_low) return s.out.emit(Prim::Minimum, {s.x[0], s.x[2]});
    if (no_high) return s.out.emit(Prim::Maximum, {s.x[0], s.x[1]});
    return std::nullopt;
}

// Of constants of one value each: that value.
std::optional<ValueId> of_constants(const Site& s) {
    std::vector<Num> x;
    for (ValueId v : s.x) {
        auto n = s.out.number(v);
        if (!n) return std::nullopt;
        x.push_back(*n);
    }
    std::int64_t imm = s.prim == Prim::Round2      ? s.attrs.get<std::int64_t>("decimals")
                       : s.prim == Prim::Polygamma ? s.attrs.get<std::int64_t>("order")
                       : s.prim == Prim::Philox    ? s.attrs.get<std::int64_t>("layout")
                                                   : 0;
    const DType dtype = s.out.type(s.x[s.prim == Prim::Select ? 1 : 0]).dtype;
    if (x.size() == 2 && divides_by_zero(s.prim, dtype, x[1])) return std::nullopt;
    try {
        Num v = evaluate_pointwise(s.prim, dtype, s.type.dtype, x, imm);
        return s.out.full(s.type, to_scalar(v, s.type.dtype));
    } catch (const Error&) {
        return std::nullopt;
    }
}

// f(broadcast(a), broadcast(b), constant) = broadcast(f(a, b, constant)): fewer elements to
// compute.
std::optional<ValueId> before_broadcast(const Site& s) {
    const Node* first = nullptr;
    for (ValueId v : s.x) {
        if (s.out.made_by(v, Prim::Full)) continue;
        const Node* n = s.out.made_by(v, Prim::Broadcast);
        if (n == nullptr) return std::nullopt;
        if (first == nullptr) first = n;
        if (!(n->attrs == first->attrs) ||
            s.out.type(n->operands[0]).sizes != s.out.type(first->operands[0]).sizes)
            return std::nullopt;
    }
    if (first == nullptr) return std::nullopt;
    const Attrs how = first->attrs;
    const Type small = s.out.type(first->operands[0]);
    std::vector<ValueId> x;
    for (ValueId v : s.x) {
        if (auto value = full_value(s.out.graph(), v)) {
            Type t = s.out.type(v);
            t.sizes = small.sizes;
            x.push_back(s.out.full(t, *value));
        } else {
            x.push_back(s.out.producer(v)->operands[0]);
        }
    }
    return s.out.emit(Prim::Broadcast, {s.out.emit(s.prim, std::move(x), s.attrs)}, how);
}

}  // namespace

std::optional<ValueId> pointwise(const Site& s) {
    if (auto v = of_constants(s)) return v;
    std::optional<ValueId> v;
    if (s.x.size() == 1) {
        v = s.prim == Prim::Convert ? convert(s) : repeated(s);
    } else if (s.x.size() == 2) {
        Constants c{s.out.number(s.x[0]), s.out.number(s.x[1]), s.out.type(s.x[0]).dtype};
        switch (s.prim) {
            case Prim::Add:
            case Prim::Sub:
                v = sum(s, c);
                break;
            case Prim::Mul:
                v = product(s, c);
                break;
            case Prim::Div:
                v = quotient(s, c);
                break;
            case Prim::Pow:
                v = power(s, c);
                break;
            case Prim::Maximum:
            case Prim::Minimum:
                if (s.x[0] == s.x[1]) v = s.x[0];
                break;
            case Prim::BitwiseAnd:
            case Prim::BitwiseOr:
            case Prim::BitwiseXor:
                v = bits(s, c);
                break;
            case Prim::LogicalAnd:
            case Prim::LogicalOr:
            case Prim::LogicalXor:
                v = logical(s, c);
                break;
            default:
                break;
        }
    } else if (s.prim == Prim::Select) {
        v = select(s);
    } else if (s.prim == Prim::Clamp) {
        v = clamp(s);
    }
    return v ? v : before_broadcast(s);
}

}  // namespace ingot::simplify_rules
