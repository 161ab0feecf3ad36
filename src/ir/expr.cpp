// Canonical integer expressions; see expr.h. The sum is the centre: every expression can be read as
// a Sum of weighted products, arithmetic happens on Sums, and `intern` turns the result into the
// one node that stands for it.
#include "ir/expr.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <unordered_map>

#include "ir/error.h"

namespace ingot {

namespace {

using Int128 = __int128;

std::int64_t saturate(Int128 v) {
    if (v <= Range::kMin) return Range::kMin;
    if (v >= Range::kMax) return Range::kMax;
    return static_cast<std::int64_t>(v);
}
bool infinite(std::int64_t v) { return v == Range::kMin || v == Range::kMax; }

std::int64_t add_bound(std::int64_t a, std::int64_t b) {
    if (infinite(a)) return a;
    if (infinite(b)) return b;
    return saturate(Int128(a) + b);
}
std::int64_t mul_bound(std::int64_t a, std::int64_t b) {
    if (a == 0 || b == 0) return 0;
    if (infinite(a) || infinite(b)) return (a > 0) == (b > 0) ? Range::kMax : Range::kMin;
    return saturate(Int128(a) * b);
}
Range add(Range a, Range b) { return {add_bound(a.lo, b.lo), add_bound(a.hi, b.hi)}; }
Range mul(Range a, Range b) {
    const std::int64_t c[] = {mul_bound(a.lo, b.lo), mul_bound(a.lo, b.hi), mul_bound(a.hi, b.lo),
                              mul_bound(a.hi, b.hi)};
    return {*std::min_element(c, c + 4), *std::max_element(c, c + 4)};
}
std::int64_t floor_div_int(std::int64_t a, std::int64_t b) {
    if (b == -1) return static_cast<std::int64_t>(0 - static_cast<std::uint64_t>(a));  // it wraps
    std::int64_t q = a / b;
    return (a % b != 0 && ((a % b < 0) != (b < 0))) ? q - 1 : q;
}
std::int64_t mod_int(std::int64_t a, std::int64_t b) {
    return b == -1 ? 0 : a - b * floor_div_int(a, b);
}
std::int64_t div_bound(std::int64_t a, std::int64_t b) {
    if (infinite(a)) return (a > 0) == (b > 0) ? Range::kMax : Range::kMin;
    if (infinite(b)) return ((a < 0) != (b < 0)) && a != 0 ? -1 : 0;
    return floor_div_int(a, b);
}

std::size_t mix(std::size_t h, std::size_t v) {
    return h ^ (v + 0x9e3779b97f4a7c15ull + (h << 6) + (h >> 2));
}
std::size_t hash_expr(Expr e) {
    return e.is_constant() ? std::hash<std::int64_t>()(e.constant())
                           : std::hash<const void*>()(e.node()) * 31 + 7;
}

}  // namespace

struct ExprPool::Impl {
    std::vector<std::unique_ptr<ExprNode>> nodes;
    std::unordered_multimap<std::size_t, const ExprNode*> interned;
    std::unordered_map<std::string, const ExprNode*> symbols;
};

// A weighted sum of products, keyed by node id so that the order is canonical.
struct Sum {
    std::map<std::uint32_t, std::pair<const ExprNode*, std::int64_t>> terms;
    std::int64_t constant = 0;
    ExprPool* pool = nullptr;

    void add_term(const ExprNode* n, std::int64_t coefficient) {
        pool = n->pool;
        auto [it, fresh] = terms.try_emplace(n->id, n, coefficient);
        if (!fresh && (it->second.second += coefficient) == 0) terms.erase(it);
        if (fresh && coefficient == 0) terms.erase(it);
    }
    void add(Expr e, std::int64_t factor = 1) {
        if (e.is_constant()) {
            constant += e.constant() * factor;
        } else if (e.node()->kind == ExprKind::Add) {
            const ExprNode& n = *e.node();
            for (std::size_t i = 0; i < n.args.size(); ++i)
                add_term(n.args[i].node(), n.coefficients[i] * factor);
            constant += n.constant * factor;
        } else {
            add_term(e.node(), factor);
        }
    }
    bool single() const { return terms.size() == 1 && constant == 0; }
};

struct ExprBuilder {
    static const ExprNode* intern(ExprPool& pool, ExprNode proto) {
        std::size_t h =
            static_cast<std::size_t>(proto.kind) * 77 + std::hash<std::int64_t>()(proto.constant);
        for (const Expr& a : proto.args) h = mix(h, hash_expr(a));
        for (std::int64_t c : proto.coefficients) h = mix(h, static_cast<std::size_t>(c));
        auto& impl = *pool.impl_;
        auto [first, last] = impl.interned.equal_range(h);
        for (auto it = first; it != last; ++it) {
            const ExprNode& n = *it->second;
            if (n.kind == proto.kind && n.constant == proto.constant && n.args == proto.args &&
                n.coefficients == proto.coefficients)
                return &n;
        }
        const ExprNode* n = append(pool, std::move(proto));
        impl.interned.emplace(h, n);
        return n;
    }
    static const ExprNode* append(ExprPool& pool, ExprNode proto) {
        auto& impl = *pool.impl_;
        proto.pool = &pool;
        proto.id = static_cast<std::uint32_t>(impl.nodes.size());
        impl.nodes.push_back(std::make_unique<ExprNode>(std::move(proto)));
        return impl.nodes.back().get();
    }

    // k*(x % c) + k*c*(x // c) becomes k*x. True when a pair was found and replaced.
    static bool recombine(Sum& sum) {
        for (auto& [id, term] : sum.terms) {
            auto [node, coefficient] = term;
            std::vector<Expr> atoms =
                node->kind == ExprKind::Mul ? node->args : std::vector<Expr>{Expr(node)};
            for (std::size_t i = 0; i < atoms.size(); ++i) {
                const ExprNode& atom = *atoms[i].node();
                if (atom.kind != ExprKind::Mod) continue;
                Expr others = 1;
                for (std::size_t j = 0; j < atoms.size(); ++j)
                    if (j != i) others = others * atoms[j];
                Sum whole;
                whole.add(others * atom.args[1] * floor_div(atom.args[0], atom.args[1]),
                          coefficient);
                if (!whole.single()) continue;
                auto [partner, wanted] = whole.terms.begin()->second;
                auto found = sum.terms.find(partner->id);
                if (found == sum.terms.end() || found->second.second != wanted) continue;
                Expr joined = others * atom.args[0];
                sum.add_term(partner, -wanted);
                sum.add_term(node, -coefficient);
                sum.add(joined, coefficient);
                return true;
            }
        }
        return false;
    }

    static Expr make(Sum sum) {
        while (recombine(sum)) {
        }
        if (sum.terms.empty()) return Expr(sum.constant);
        if (sum.single() && sum.terms.begin()->second.second == 1)
            return Expr(sum.terms.begin()->second.first);
        ExprNode proto{};
        proto.kind = ExprKind::Add;
        proto.constant = sum.constant;
        proto.range = {sum.constant, sum.constant};
        for (auto& [id, term] : sum.terms) {
            proto.args.push_back(Expr(term.first));
            proto.coefficients.push_back(term.second);
            proto.range = add(proto.range, mul(term.first->range, {term.second, term.second}));
        }
        return Expr(intern(*sum.pool, std::move(proto)));
    }

    static Expr multiply_terms(const ExprNode* a, const ExprNode* b) {
        std::vector<Expr> atoms;
        for (const ExprNode* n : {a, b}) {
            if (n->kind == ExprKind::Mul)
                atoms.insert(atoms.end(), n->args.begin(), n->args.end());
            else
                atoms.push_back(Expr(n));
        }
        std::sort(atoms.begin(), atoms.end(),
                  [](const Expr& x, const Expr& y) { return x.node()->id < y.node()->id; });
        ExprNode proto{};
        proto.kind = ExprKind::Mul;
        proto.range = {1, 1};
        for (const Expr& x : atoms) proto.range = mul(proto.range, x.range());
        proto.args = std::move(atoms);
        return Expr(intern(*a->pool, std::move(proto)));
    }

    static Expr binary(ExprKind kind, Expr a, Expr b, Range range) {
        ExprNode proto{};
        proto.kind = kind;
        proto.range = range;
        proto.args = {a, b};
        ExprPool* pool = a.is_constant() ? b.node()->pool : a.node()->pool;
        return Expr(intern(*pool, std::move(proto)));
    }
};

namespace {

Sum sum_of(Expr e) {
    Sum s;
    s.add(e);
    return s;
}

// quotient * divisor + rest == the dividend, with rest as small as terms show.
struct Division {
    Expr quotient;
    Expr rest;
};

// The product term `node` without the factors of `divisor`, or nothing when they are not all there.
std::optional<Expr> remove_factors(const ExprNode* node, const ExprNode* divisor) {
    auto atoms = [](const ExprNode* n) {
        return n->kind == ExprKind::Mul ? n->args : std::vector<Expr>{Expr(n)};
    };
    std::vector<Expr> left = atoms(node);
    for (const Expr& f : atoms(divisor)) {
        auto it = std::find(left.begin(), left.end(), f);
        if (it == left.end()) return std::nullopt;
        left.erase(it);
    }
    Expr result = 1;
    for (const Expr& f : left) result = result * f;
    return result;
}

Division divide_terms(Expr a, Expr b) {
    if (a == b) return {1, 0};
    Sum dividend = sum_of(a);
    Sum divisor = sum_of(b);
    Sum quotient, rest;
    if (b.is_constant()) {
        const std::int64_t c = b.constant();
        for (auto& [id, term] : dividend.terms)
            (term.second % c == 0 ? quotient : rest)
                .add_term(term.first, term.second % c == 0 ? term.second / c : term.second);
        quotient.constant = floor_div_int(dividend.constant, c);
        rest.constant = mod_int(dividend.constant, c);
    } else if (divisor.single()) {
        auto [node, weight] = divisor.terms.begin()->second;
        rest.constant = dividend.constant;
        for (auto& [id, term] : dividend.terms) {
            std::optional<Expr> left;
            if (term.second % weight == 0) left = remove_factors(term.first, node);
            if (left)
                quotient.add(*left, term.second / weight);
            else
                rest.add_term(term.first, term.second);
        }
    } else {
        return {0, a};
    }
    return {ExprBuilder::make(std::move(quotient)), ExprBuilder::make(std::move(rest))};
}

// rest == g * y + r with 0 <= r < g and g dividing c, g > 1: division by c can go on with y and c /
// g.
struct CommonFactor {
    std::int64_t g;
    Expr y;
    Expr r;
};
std::optional<CommonFactor> common_factor(Expr rest, std::int64_t c) {
    Sum s = sum_of(rest);
    std::vector<std::int64_t> candidates;
    for (auto& [id, term] : s.terms) {
        std::int64_t g = std::gcd(term.second, c);
        if (g > 1) candidates.push_back(g);
    }
    std::sort(candidates.begin(), candidates.end(), std::greater<>());
    candidates.erase(std::unique(candidates.begin(), candidates.end()), candidates.end());
    for (std::int64_t g : candidates) {
        Sum y, r;
        for (auto& [id, term] : s.terms) {
            if (term.second % g == 0)
                y.add_term(term.first, term.second / g);
            else
                r.add_term(term.first, term.second);
        }
        y.constant = floor_div_int(s.constant, g);
        r.constant = mod_int(s.constant, g);
        Expr small = ExprBuilder::make(std::move(r));
        Range range = small.range();
        if (range.lo >= 0 && range.hi < g)
            return CommonFactor{g, ExprBuilder::make(std::move(y)), small};
    }
    return std::nullopt;
}

// A lower bound of `e` in which loop variables with symbolic extents (and remainders by symbolic
// divisors) are replaced by the end of their interval that makes `e` smallest.
Expr lower_bound(Expr e) {
    for (int round = 0; round < 8 && !e.is_constant(); ++round) {
        bool changed = false;
        std::vector<Expr> atoms;
        for (auto& [id, term] : sum_of(e).terms) {
            const auto& n = *term.first;
            if (n.kind == ExprKind::Mul)
                atoms.insert(atoms.end(), n.args.begin(), n.args.end());
            else
                atoms.push_back(Expr(term.first));
        }
        for (const Expr& atom : atoms) {
            const ExprNode& n = *atom.node();
            Expr upper;
            if (n.kind == ExprKind::Symbol && !n.extent.is_constant())
                upper = n.extent + Expr(-1);
            else if (n.kind == ExprKind::Mod && !n.args[1].is_constant())
                upper = n.args[1] + Expr(-1);
            else
                continue;
            auto linear = linear_in(e, atom);
            if (!linear) continue;
            Range stride = linear->stride.range();
            if (stride.lo >= 0)
                e = linear->rest;
            else if (stride.hi <= 0)
                e = linear->rest + linear->stride * upper;
            else
                continue;
            changed = true;
            break;
        }
        if (!changed) break;
    }
    return e;
}

bool in_interval(Expr rest, Expr divisor) {
    if (rest.range().lo < 0) return false;
    if (divisor.is_constant()) return rest.range().hi < divisor.constant();
    return known_lt(rest, divisor).value_or(false);
}

}  // namespace

bool Expr::is_symbol() const { return node_ != nullptr && node_->kind == ExprKind::Symbol; }

Range Expr::range() const { return node_ == nullptr ? Range{value_, value_} : node_->range; }

Expr operator+(Expr a, Expr b) {
    if (a.is_constant() && b.is_constant()) return a.constant() + b.constant();
    if (a.is(0)) return b;
    if (b.is(0)) return a;
    Sum s = sum_of(a);
    s.add(b);
    return ExprBuilder::make(std::move(s));
}

Expr operator-(Expr a) { return a * Expr(-1); }
Expr operator-(Expr a, Expr b) {
    if (a.is_constant() && b.is_constant()) return a.constant() - b.constant();
    Sum s = sum_of(a);
    s.add(b, -1);
    return ExprBuilder::make(std::move(s));
}

Expr operator*(Expr a, Expr b) {
    if (a.is_constant() && b.is_constant()) return a.constant() * b.constant();
    if (b.is_constant()) std::swap(a, b);
    Sum s;
    if (a.is_constant()) {
        if (a.is(0)) return 0;
        if (a.is(1)) return b;
        s.add(b, a.constant());
        return ExprBuilder::make(std::move(s));
    }
    Sum x = sum_of(a), y = sum_of(b);
    s.constant = x.constant * y.constant;
    for (auto& [i, s1] : x.terms)
        for (auto& [j, s2] : y.terms)
            s.add(ExprBuilder::multiply_terms(s1.first, s2.first), s1.second * s2.second);
    if (y.constant != 0)
        for (auto& [i, s1] : x.terms) s.add_term(s1.first, s1.second * y.constant);
    if (x.constant != 0)
        for (auto& [j, s2] : y.terms) s.add_term(s2.first, s2.second * x.constant);
    return ExprBuilder::make(std::move(s));
}

Expr floor_div(Expr a, Expr b) {
    if (b.is(0)) throw UserError("integer division by zero in a size expression");
    if (a.is_constant() && b.is_constant()) return floor_div_int(a.constant(), b.constant());
    if (b.is_constant() && b.constant() < 0) return floor_div(-a, -b);
    if (b.is(1) || a.is(0)) return a;
    auto [quotient, rest] = divide_terms(a, b);
    if (rest.is(0) || in_interval(rest, b)) return quotient;
    if (b.is_constant()) {
        const std::int64_t c = b.constant();
        Range r = rest.range();
        if (!infinite(r.lo) && !infinite(r.hi) && floor_div_int(r.lo, c) == floor_div_int(r.hi, c))
            return quotient + Expr(floor_div_int(r.lo, c));
        if (auto f = common_factor(rest, c)) return quotient + floor_div(f->y, c / f->g);
        if (!rest.is_constant() && rest.node()->kind == ExprKind::FloorDiv &&
            rest.node()->args[1].is_constant())
            return quotient + floor_div(rest.node()->args[0], rest.node()->args[1] * b);
        if (!rest.is_constant() && rest.node()->kind == ExprKind::Mod &&
            rest.node()->args[1].is_constant() && rest.node()->args[1].constant() % c == 0)
            return quotient +
                   mod(floor_div(rest.node()->args[0], b), rest.node()->args[1].constant() / c);
    }
    Range x = rest.range(), y = b.range(), range;
    if (y.lo > 0) {
        const std::int64_t c[] = {div_bound(x.lo, y.lo), div_bound(x.lo, y.hi),
                                  div_bound(x.hi, y.lo), div_bound(x.hi, y.hi)};
        range = {*std::min_element(c, c + 4), *std::max_element(c, c + 4)};
    }
    return quotient + ExprBuilder::binary(ExprKind::FloorDiv, rest, b, range);
}

Expr mod(Expr a, Expr b) {
    if (b.is(0)) throw UserError("integer modulo by zero in a size expression");
    if (a.is_constant() && b.is_constant()) return mod_int(a.constant(), b.constant());
    if (b.is(1) || b.is(-1)) return 0;
    if (b.is_constant() && b.constant() < 0) return -mod(-a, -b);
    Expr rest = divide_terms(a, b).rest;
    if (rest.is(0) || in_interval(rest, b)) return rest;
    if (b.is_constant()) {
        const std::int64_t c = b.constant();
        Range r = rest.range();
        if (!infinite(r.lo) && !infinite(r.hi) && floor_div_int(r.lo, c) == floor_div_int(r.hi, c))
            return rest - Expr(floor_div_int(r.lo, c) * c);
        if (auto f = common_factor(rest, c)) return mod(f->y, c / f->g) * Expr(f->g) + f->r;
        if (!rest.is_constant() && rest.node()->kind == ExprKind::Mod &&
            rest.node()->args[1].is_constant() && rest.node()->args[1].constant() % c == 0)
            return mod(rest.node()->args[0], b);
    }
    Range y = b.range();
    Range range = y.lo > 0 ? Range{0, y.hi == Range::kMax ? y.hi : y.hi - 1} : Range{};
    return ExprBuilder::binary(ExprKind::Mod, rest, b, range);
}

std::optional<bool> known_lt(Expr a, Expr b) {
    if (a.is_constant() && b.is_constant()) return a.constant() < b.constant();
    if (lower_bound(b - a).range().lo >= 1) return true;
    if (lower_bound(a - b).range().lo >= 0) return false;
    return std::nullopt;
}
std::optional<bool> known_le(Expr a, Expr b) { return known_lt(a, b + Expr(1)); }
std::optional<bool> known_eq(Expr a, Expr b) {
    Expr d = a - b;
    if (d.is_constant()) return d.constant() == 0;
    if (d.range().lo > 0 || d.range().hi < 0) return false;
    return std::nullopt;
}

namespace {
// The canonical order of the operands of min and max: older nodes first, a constant last.
void order(Expr& a, Expr& b) {
    if (a.is_constant() || (!b.is_constant() && b.node()->id < a.node()->id)) std::swap(a, b);
}
}  // namespace

Expr min(Expr a, Expr b) {
    if (known_le(a, b) == true) return a;
    if (known_le(b, a) == true) return b;
    order(a, b);
    Range x = a.range(), y = b.range();
    return ExprBuilder::binary(ExprKind::Min, a, b, {std::min(x.lo, y.lo), std::min(x.hi, y.hi)});
}
Expr max(Expr a, Expr b) {
    if (known_le(a, b) == true) return b;
    if (known_le(b, a) == true) return a;
    order(a, b);
    Range x = a.range(), y = b.range();
    return ExprBuilder::binary(ExprKind::Max, a, b, {std::max(x.lo, y.lo), std::max(x.hi, y.hi)});
}

namespace {

// Rebuilds `e` bottom-up from `leaf` applied to its symbols.
template <class T, class Leaf, class Ops>
T fold(Expr e, const Leaf& leaf, const Ops& ops) {
    if (e.is_constant()) return T(e.constant());
    const ExprNode& n = *e.node();
    switch (n.kind) {
        case ExprKind::Symbol:
            return leaf(e);
        case ExprKind::Add: {
            T sum(n.constant);
            for (std::size_t i = 0; i < n.args.size(); ++i)
                sum = sum + fold<T>(n.args[i], leaf, ops) * T(n.coefficients[i]);
            return sum;
        }
        case ExprKind::Mul: {
            T p(1);
            for (const Expr& a : n.args) p = p * fold<T>(a, leaf, ops);
            return p;
        }
        default:
            return ops(n.kind, fold<T>(n.args[0], leaf, ops), fold<T>(n.args[1], leaf, ops));
    }
}

}  // namespace

Expr substitute(Expr a, const std::function<std::optional<Expr>(Expr)>& value) {
    return fold<Expr>(
        a, [&](Expr s) { return value(s).value_or(s); },
        [](ExprKind kind, Expr x, Expr y) {
            switch (kind) {
                case ExprKind::FloorDiv:
                    return floor_div(x, y);
                case ExprKind::Mod:
                    return mod(x, y);
                case ExprKind::Min:
                    return min(x, y);
                default:
                    return max(x, y);
            }
        });
}

std::int64_t evaluate(Expr a, const std::function<std::int64_t(Expr)>& value) {
    return fold<std::int64_t>(a, value, [](ExprKind kind, std::int64_t x, std::int64_t y) {
        if ((kind == ExprKind::FloorDiv || kind == ExprKind::Mod) && y == 0)
            throw UserError("integer division by zero in a size expression");
        switch (kind) {
            case ExprKind::FloorDiv:
                return floor_div_int(x, y);
            case ExprKind::Mod:
                return mod_int(x, y);
            case ExprKind::Min:
                return std::min(x, y);
            default:
                return std::max(x, y);
        }
    });
}

void collect_symbols(Expr a, std::vector<Expr>& into) {
    if (a.is_constant()) return;
    if (a.is_symbol()) {
        if (std::find(into.begin(), into.end(), a) == into.end()) into.push_back(a);
        return;
    }
    for (const Expr& x : a.node()->args) collect_symbols(x, into);
}
std::vector<Expr> symbols(Expr a) {
    std::vector<Expr> found;
    collect_symbols(a, found);
    std::sort(found.begin(), found.end(),
              [](Expr x, Expr y) { return x.node()->id < y.node()->id; });
    return found;
}
bool contains(Expr a, Expr symbol) {
    if (a.is_constant()) return false;
    if (a == symbol) return true;
    const auto& args = a.node()->args;
    return std::any_of(args.begin(), args.end(), [&](Expr x) { return contains(x, symbol); });
}

std::optional<LinearForm> linear_in(Expr a, Expr symbol) {
    if (a.is_constant()) return LinearForm{0, a};
    Sum all = sum_of(a), rest;
    Expr stride = 0;
    rest.constant = all.constant;
    for (auto& [id, term] : all.terms) {
        if (!contains(Expr(term.first), symbol)) {
            rest.add_term(term.first, term.second);
            continue;
        }
        auto left = remove_factors(term.first, symbol.node());
        if (!left || contains(*left, symbol)) return std::nullopt;
        stride += *left * Expr(term.second);
    }
    return LinearForm{stride, ExprBuilder::make(std::move(rest))};
}

ExprPool::ExprPool() : impl_(std::make_unique<Impl>()) {}
ExprPool::~ExprPool() = default;

Expr ExprPool::symbol(std::string_view name, Range range) {
    auto [it, fresh] = impl_->symbols.try_emplace(std::string(name), nullptr);
    if (fresh) {
        ExprNode proto{};
        proto.kind = ExprKind::Symbol;
        proto.range = range;
        proto.symbol = std::string(name);
        it->second = ExprBuilder::append(*this, std::move(proto));
    }
    return Expr(it->second);
}

Expr ExprPool::index(std::string_view name, Expr extent, std::optional<Range> range) {
    auto [it, fresh] = impl_->symbols.try_emplace(std::string(name), nullptr);
    if (fresh) {
        ExprNode proto{};
        proto.kind = ExprKind::Symbol;
        std::int64_t hi = extent.range().hi;
        Range usual{0, hi == Range::kMax ? hi : std::max<std::int64_t>(hi - 1, 0)};
        proto.range = range.value_or(usual);
        if (!extent.is_constant()) proto.extent = extent;
        proto.symbol = std::string(name);
        it->second = ExprBuilder::append(*this, std::move(proto));
    }
    return Expr(it->second);
}

std::optional<Expr> ExprPool::find(std::string_view name) const {
    auto it = impl_->symbols.find(std::string(name));
    if (it == impl_->symbols.end()) return std::nullopt;
    return Expr(it->second);
}

Expr product(std::span<const Expr> sizes) {
    Expr p = 1;
    for (const Expr& s : sizes) p = p * s;
    return p;
}

Sizes contiguous_strides(std::span<const Expr> sizes) {
    Sizes strides(sizes.size());
    Expr step = 1;
    for (std::size_t i = sizes.size(); i-- > 0;) {
        strides[i] = step;
        step = step * (sizes[i].is(0) ? Expr(1) : sizes[i]);
    }
    return strides;
}

}  // namespace ingot
