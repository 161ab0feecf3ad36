// Index expressions as machine code; see emit_index.h.
#include "codegen/llvm/emit_index.h"

#include <llvm/IR/Constants.h>

#include <algorithm>
#include <numeric>

#include "ir/error.h"

namespace ingot::codegen {

void IndexEmitter::set_vector(Expr var, unsigned lanes, std::int64_t alignment) {
    var_ = var;
    lanes_ = std::max(1u, lanes);
    var_alignment_ = alignment > 0 ? alignment : lanes_;
}

void IndexEmitter::clear_vector() {
    var_ = Expr();
    lanes_ = 1;
    var_alignment_ = 1;
}

void IndexEmitter::bind(Expr symbol, IrValue value) {
    check(symbol.is_symbol(), "only symbols are bound");
    scopes_.back()[symbol.node()] = {value, true};
}

const IndexEmitter::Binding* IndexEmitter::find(const ExprNode* node) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope)
        if (auto it = scope->find(node); it != scope->end()) return &it->second;
    return nullptr;
}

int IndexEmitter::depth(Expr e) const {
    int deepest = 0;
    for (Expr s : symbols(e))
        for (int d = static_cast<int>(scopes_.size()) - 1; d > deepest; --d)
            if (scopes_[static_cast<std::size_t>(d)].count(s.node())) deepest = d;
    return deepest;
}

llvm::Constant* IndexEmitter::iota(llvm::Type* element, unsigned lanes, std::int64_t step) {
    std::vector<llvm::Constant*> values;
    for (unsigned i = 0; i < lanes; ++i)
        values.push_back(
            llvm::ConstantInt::get(element, static_cast<std::uint64_t>(step * i), true));
    return lanes > 1 ? llvm::ConstantVector::get(values) : values[0];
}

// ---- scalars ------------------------------------------------------------------------------------

IrValue IndexEmitter::scalar(Expr e) {
    if (e.is_constant()) return b.getInt64(static_cast<std::uint64_t>(e.constant()));
    if (const Binding* known = find(e.node())) {
        check(!known->value->getType()->isVectorTy(), "a vector where a scalar index is needed");
        return known->value;
    }
    IrValue v = compute(*e.node());
    scopes_.back()[e.node()] = {v, false};
    return v;
}

IrValue IndexEmitter::compute(const ExprNode& n) {
    switch (n.kind) {
        case ExprKind::Symbol:
            throw InternalError("index symbol '" + n.symbol + "' has no value");
        case ExprKind::Add:
            return sum(n);
        case ExprKind::Mul: {
            std::vector<Expr> factors = n.args;
            std::stable_sort(factors.begin(), factors.end(),
                             [&](Expr x, Expr y) { return depth(x) < depth(y); });
            IrValue r = scalar(factors[0]);
            for (std::size_t i = 1; i < factors.size(); ++i)
                r = b.CreateMul(r, scalar(factors[i]), "", false, true);
            return r;
        }
        case ExprKind::FloorDiv:
        case ExprKind::Mod:
            return floored(scalar(n.args[0]), scalar(n.args[1]), n.args[0], n.args[1],
                           n.kind == ExprKind::FloorDiv);
        case ExprKind::Min:
        case ExprKind::Max: {
            IrValue r = scalar(n.args[0]);
            for (std::size_t i = 1; i < n.args.size(); ++i)
                r = b.CreateBinaryIntrinsic(
                    n.kind == ExprKind::Min ? llvm::Intrinsic::smin : llvm::Intrinsic::smax, r,
                    scalar(n.args[i]));
            return r;
        }
    }
    throw InternalError("unknown kind of index expression");
}

// Outer terms first: their partial sums do not change in the inner loops.
IrValue IndexEmitter::sum(const ExprNode& n) {
    struct Term {
        Expr e;
        std::int64_t coefficient;
        int depth;
    };
    std::vector<Term> terms;
    for (std::size_t i = 0; i < n.args.size(); ++i)
        terms.push_back({n.args[i], n.coefficients[i], depth(n.args[i])});
    std::stable_sort(terms.begin(), terms.end(),
                     [](const Term& x, const Term& y) { return x.depth < y.depth; });
    IrValue r = n.constant == 0 ? nullptr : b.getInt64(static_cast<std::uint64_t>(n.constant));
    for (const Term& t : terms) {
        IrValue v = scalar(t.e);
        if (t.coefficient != 1)
            v = b.CreateMul(v, b.getInt64(static_cast<std::uint64_t>(t.coefficient)), "", false,
                            true);
        r = r ? b.CreateAdd(r, v, "", false, true) : v;
    }
    return r;
}

IrValue IndexEmitter::floored(IrValue x, IrValue y, Expr dividend, Expr divisor, bool quotient) {
    auto num = [&](std::int64_t v) {
        return llvm::ConstantInt::get(x->getType(), static_cast<std::uint64_t>(v), true);
    };
    // Hoisted code may run where the program does not: a size of 0 must not trap.
    if (!divisor.is_constant() && divisor.range().lo < 1 && divisor.range().hi >= 0)
        y = b.CreateSelect(b.CreateICmpEQ(y, num(0)), num(1), y);
    const bool positive = divisor.is_constant() ? divisor.constant() > 0 : divisor.range().lo >= 0;
    if (dividend.range().lo >= 0 && positive)
        return quotient ? b.CreateUDiv(x, y) : b.CreateURem(x, y);
    IrValue r = b.CreateSRem(x, y);
    IrValue adjust =
        b.CreateAnd(b.CreateICmpNE(r, num(0)), b.CreateICmpSLT(b.CreateXor(r, y), num(0)));
    if (!quotient) return b.CreateSelect(adjust, b.CreateAdd(r, y), r);
    return b.CreateAdd(b.CreateSDiv(x, y), b.CreateSExt(adjust, x->getType()));
}

// ---- lanes --------------------------------------------------------------------------------------

bool IndexEmitter::irregular(Expr e) const {
    for (Expr s : symbols(e))
        if (const Binding* known = find(s.node()); known && known->value->getType()->isVectorTy())
            return true;
    return false;
}

std::int64_t IndexEmitter::alignment(Expr e) const {
    if (e.is_constant()) return std::abs(e.constant());
    const ExprNode& n = *e.node();
    switch (n.kind) {
        case ExprKind::Symbol:
            return e == var_ ? var_alignment_ : 1;
        case ExprKind::Add: {
            std::int64_t g = std::abs(n.constant);
            for (std::size_t i = 0; i < n.args.size(); ++i)
                g = std::gcd(g, alignment(n.args[i]) * std::abs(n.coefficients[i]));
            return g;
        }
        case ExprKind::Mul: {
            std::int64_t product = 1;
            for (Expr f : n.args) {
                const std::int64_t a = alignment(f);
                product = a > (1 << 20) || product > (1 << 20) ? product : product * a;
            }
            return product;
        }
        case ExprKind::FloorDiv: {
            if (!n.args[1].is_constant() || n.args[1].constant() <= 0) return 1;
            const std::int64_t a = alignment(n.args[0]), c = n.args[1].constant();
            return a % c == 0 ? a / c : 1;
        }
        case ExprKind::Mod:
            if (!n.args[1].is_constant()) return 1;
            return std::gcd(alignment(n.args[0]), std::abs(n.args[1].constant()));
        case ExprKind::Min:
        case ExprKind::Max: {
            std::int64_t g = 0;
            for (Expr a : n.args) g = std::gcd(g, alignment(a));
            return g;
        }
    }
    return 1;
}

std::optional<Expr> IndexEmitter::lane_stride(Expr e) const {
    if (e.is_constant() || lanes_ == 1) return Expr(0);
    if (irregular(e)) return std::nullopt;
    if (var_.is_constant() || !contains(e, var_)) return Expr(0);
    const ExprNode& n = *e.node();
    switch (n.kind) {
        case ExprKind::Symbol:
            return Expr(1);
        case ExprKind::Add: {
            Expr total(0);
            for (std::size_t i = 0; i < n.args.size(); ++i) {
                const auto s = lane_stride(n.args[i]);
                if (!s) return std::nullopt;
                total += *s * Expr(n.coefficients[i]);
            }
            return total;
        }
        case ExprKind::Mul: {
            Expr rest(1);
            std::optional<Expr> growth;
            for (Expr f : n.args) {
                const auto s = lane_stride(f);
                if (!s) return std::nullopt;
                if (s->is(0)) {
                    rest *= f;
                } else {
                    if (growth) return std::nullopt;
                    growth = s;
                }
            }
            if (!growth) return Expr(0);
            // `rest` may contain the variable inside // or %, where it is the same in every lane.
            return *growth * rest;
        }
        case ExprKind::FloorDiv:
        case ExprKind::Mod: {
            const auto s = lane_stride(n.args[0]);
            if (!s || !s->is_constant() || !n.args[1].is_constant()) return std::nullopt;
            const std::int64_t c = n.args[1].constant(), step = s->constant();
            if (c <= 0 || step < 0) return std::nullopt;
            const std::int64_t g = std::gcd(alignment(n.args[0]), c);
            // At lane 0 the remainder is a multiple of g, so it is at most c - g.
            if (step != 0 && step * static_cast<std::int64_t>(lanes_ - 1) >= g) return std::nullopt;
            return n.kind == ExprKind::Mod ? Expr(step) : Expr(0);
        }
        case ExprKind::Min:
        case ExprKind::Max:
            for (Expr a : n.args) {
                const auto s = lane_stride(a);
                if (!s || !s->is(0)) return std::nullopt;
            }
            return Expr(0);
    }
    return std::nullopt;
}

namespace {

bool fits_i32(__int128 lo, __int128 hi) { return lo >= -(1ll << 31) && hi < (1ll << 31); }

/// Whether `e` and all it is computed from are 32-bit numbers.
bool fits_i32(Expr e) {
    if (!fits_i32(e.range().lo, e.range().hi)) return false;
    if (e.is_constant()) return true;
    const ExprNode& n = *e.node();
    for (std::size_t i = 0; i < n.args.size(); ++i) {
        if (!fits_i32(n.args[i])) return false;
        if (n.kind != ExprKind::Add) continue;
        const Range r = n.args[i].range();
        const __int128 c = n.coefficients[i];
        if (!fits_i32(std::min(r.lo * c, r.hi * c), std::max(r.lo * c, r.hi * c))) return false;
    }
    return true;
}

}  // namespace

IrValue IndexEmitter::vector(Expr e, bool narrow) {
    return vector_of(e, narrow && fits_i32(e) ? b.getInt32Ty() : b.getInt64Ty());
}

IrValue IndexEmitter::vector_of(Expr e, llvm::Type* element) {
    auto splat_of = [&](IrValue v) { return splat(b, b.CreateTrunc(v, element), lanes_); };
    auto num = [&](std::int64_t v) {
        return llvm::ConstantInt::get(with_lanes(element, lanes_), static_cast<std::uint64_t>(v),
                                      true);
    };
    if (const auto stride = lane_stride(e)) {
        IrValue base = splat_of(scalar(e));
        if (stride->is(0)) return base;
        if (stride->is_constant())
            return b.CreateAdd(base, iota(element, lanes_, stride->constant()));
        return b.CreateAdd(base, b.CreateMul(iota(element, lanes_), splat_of(scalar(*stride))));
    }
    const ExprNode& n = *e.node();
    switch (n.kind) {
        case ExprKind::Symbol:
            return b.CreateSExtOrTrunc(find(&n)->value, with_lanes(element, lanes_));
        case ExprKind::Add: {
            // The regular terms together make one scalar base.
            Expr regular(n.constant);
            IrValue r = nullptr;
            for (std::size_t i = 0; i < n.args.size(); ++i) {
                const auto s = lane_stride(n.args[i]);
                if (s && s->is_constant()) {
                    regular += n.args[i] * Expr(n.coefficients[i]);
                    continue;
                }
                IrValue v = vector_of(n.args[i], element);
                if (n.coefficients[i] != 1) v = b.CreateMul(v, num(n.coefficients[i]));
                r = r ? b.CreateAdd(r, v) : v;
            }
            if (regular.is(0)) return r;
            IrValue v = vector_of(regular, element);
            return r ? b.CreateAdd(r, v) : v;
        }
        case ExprKind::Mul: {
            IrValue r = vector_of(n.args[0], element);
            for (std::size_t i = 1; i < n.args.size(); ++i)
                r = b.CreateMul(r, vector_of(n.args[i], element));
            return r;
        }
        case ExprKind::FloorDiv:
        case ExprKind::Mod:
            return floored(vector_of(n.args[0], element), vector_of(n.args[1], element), n.args[0],
                           n.args[1], n.kind == ExprKind::FloorDiv);
        case ExprKind::Min:
        case ExprKind::Max: {
            IrValue r = vector_of(n.args[0], element);
            for (std::size_t i = 1; i < n.args.size(); ++i)
                r = b.CreateBinaryIntrinsic(
                    n.kind == ExprKind::Min ? llvm::Intrinsic::smin : llvm::Intrinsic::smax, r,
                    vector_of(n.args[i], element));
            return r;
        }
    }
    throw InternalError("unknown kind of index expression");
}

}  // namespace ingot::codegen
