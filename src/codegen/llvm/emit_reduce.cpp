// Accumulators of reductions; see emit_reduce.h.
#include "codegen/llvm/emit_reduce.h"

#include <llvm/IR/Constants.h>

#include <limits>
#include <numeric>

#include "codegen/llvm/emit_memory.h"
#include "codegen/llvm/emit_prims.h"
#include "ir/error.h"

namespace ingot::codegen {

namespace {

bool is_arg(ReduceOp op) { return op == ReduceOp::ArgMax || op == ReduceOp::ArgMin; }
bool is_max(ReduceOp op) { return op == ReduceOp::Max || op == ReduceOp::ArgMax; }

Scalar start_value(const Reduction& r) {
    const bool least = is_max(r.op);
    switch (r.op) {
        case ReduceOp::Sum:
        case ReduceOp::Or:
        case ReduceOp::Xor:
            return is_complex(r.dtype) || is_float(r.dtype) ? Scalar(0.0) : Scalar(0);
        case ReduceOp::Prod:
            return is_complex(r.dtype) || is_float(r.dtype) ? Scalar(1.0) : Scalar(1);
        case ReduceOp::And:
            return Scalar(std::int64_t{-1});
        default:
            break;
    }
    if (is_float(r.dtype)) {
        const double inf = std::numeric_limits<double>::infinity();
        return Scalar(least ? -inf : inf);
    }
    if (r.dtype == DType::Bool) return Scalar(!least);
    const int bits = bytes(r.dtype) * 8;
    if (is_unsigned_int(r.dtype)) return Scalar(std::int64_t{least ? 0 : -1});
    const auto top = static_cast<std::int64_t>((std::uint64_t{1} << (bits - 1)) - 1);
    return Scalar(least ? -top - 1 : top);
}

Prim combining_prim(ReduceOp op, DType t) {
    switch (op) {
        case ReduceOp::Sum:
            return Prim::Add;
        case ReduceOp::Prod:
            return Prim::Mul;
        case ReduceOp::Max:
            return Prim::Maximum;
        case ReduceOp::Min:
            return Prim::Minimum;
        case ReduceOp::And:
            return Prim::BitwiseAnd;
        case ReduceOp::Or:
            return Prim::BitwiseOr;
        case ReduceOp::Xor:
            return Prim::BitwiseXor;
        default:
            throw InternalError("an arg reduction has no combining prim");
    }
}

// The greater (smaller) value wins, NaN above all; of equal ones the smaller index.
Partial combine_arg(EmitContext& c, const Reduction& r, const Partial& x, const Partial& y) {
    llvm::IRBuilder<>& b = c.b;
    IrValue better = nullptr, equal = nullptr;
    IrValue p = x.value.re, q = y.value.re;
    if (is_float(r.dtype)) {
        IrValue p_nan = b.CreateFCmpUNO(p, p), q_nan = b.CreateFCmpUNO(q, q);
        better = is_max(r.op) ? b.CreateFCmpOGT(q, p) : b.CreateFCmpOLT(q, p);
        better = b.CreateOr(better, b.CreateAnd(q_nan, b.CreateNot(p_nan)));
        equal = b.CreateOr(b.CreateFCmpOEQ(p, q), b.CreateAnd(p_nan, q_nan));
    } else {
        IrValue best = emit_extremum(b, p, q, is_max(r.op), is_signed_int(r.dtype));
        equal = b.CreateICmpEQ(p, q);
        better = b.CreateAnd(b.CreateICmpEQ(best, q), b.CreateNot(equal));
    }
    IrValue take = b.CreateOr(better, b.CreateAnd(equal, b.CreateICmpSLT(y.index, x.index)));
    return {{b.CreateSelect(take, q, p)}, b.CreateSelect(take, y.index, x.index)};
}

// An index, or lanes of them, in so many bits.
IrValue with_bits(llvm::IRBuilder<>& b, IrValue index, unsigned bits) {
    return b.CreateSExtOrTrunc(index, index->getType()->getWithNewBitWidth(bits));
}

// Lanes [first, first + count) of a vector.
IrValue part(llvm::IRBuilder<>& b, IrValue v, unsigned first, unsigned count) {
    if (!v) return nullptr;
    if (count == 1) return b.CreateExtractElement(v, first);
    std::vector<int> m(count);
    std::iota(m.begin(), m.end(), static_cast<int>(first));
    return b.CreateShuffleVector(v, m);
}

}  // namespace

bool has_short_indices(const Phase& phase, const Reduction& r) {
    if (r.index == kNone || phase.insts[r.index].kind != InstKind::Index) return false;
    const Range range = phase.insts[r.index].offset.range();
    return range.lo >= 0 && range.hi < std::numeric_limits<std::int32_t>::max();
}

Partial identity(EmitContext& c, const Reduction& r, unsigned lanes, bool short_indices) {
    Partial p;
    p.value = splat(c.b, constant(c.b.getContext(), r.dtype, start_value(r)), lanes);
    if (!is_arg(r.op)) return p;
    if (short_indices)
        p.index = c.b.getInt32(std::numeric_limits<std::int32_t>::max());
    else
        p.index = c.b.getInt64(std::numeric_limits<std::int64_t>::max());
    p.index = splat(c.b, p.index, lanes);
    return p;
}

Partial combine(EmitContext& c, const Reduction& r, const Partial& sofar, const Partial& next) {
    if (is_arg(r.op)) return combine_arg(c, r, sofar, next);
    const Lanes operands[] = {sofar.value, next.value};
    PrimCall call;
    call.prim = combining_prim(r.op, r.dtype);
    call.result = call.operand = r.dtype;
    call.operands = operands;
    return {emit_prim(c, call)};
}

Partial across_lanes(EmitContext& c, const Reduction& r, Partial p) {
    for (unsigned n = lanes_of(p.value.re); n > 1; n /= 2) {
        auto half = [&](unsigned first) {
            return Partial{
                {part(c.b, p.value.re, first, n / 2), part(c.b, p.value.im, first, n / 2)},
                part(c.b, p.index, first, n / 2)};
        };
        const Partial low = half(0), high = half(n / 2);
        p = combine(c, r, low, high);
    }
    return p;
}

bool is_rounded_sum(const Reduction& r) {
    return r.op == ReduceOp::Sum && (is_float(r.dtype) || is_complex(r.dtype));
}

Reduction second_level(Reduction r) {
    if (r.dtype == DType::F32) r.dtype = DType::F64;
    if (r.dtype == DType::C64) r.dtype = DType::C128;
    return r;
}

Accumulators::Accumulators(EmitContext& c, const Phase& phase, unsigned lanes, bool two_levels)
    : c_(c), phase_(phase), reductions_(phase.reductions), lanes_(lanes), two_levels_(two_levels) {
    for (const Reduction& r : reductions_) {
        first_.push_back(make(r));
        second_.push_back(has_second(r) ? make(second_level(r)) : Slot());
    }
}

bool Accumulators::has_second(const Reduction& r) const { return two_levels_ && is_rounded_sum(r); }

Partial Accumulators::converted(const Partial& p, DType from, DType to) {
    return {from == to ? p.value : convert(c_, from, to, p.value), p.index};
}

Accumulators::Slot Accumulators::make(const Reduction& r) {
    const Partial start = identity(c_, r, lanes_, has_short_indices(phase_, r));
    Slot s;
    s.type = start.value.re->getType();
    s.re = entry_alloca(c_.b, s.type, "acc");
    if (start.value.im) s.im = entry_alloca(c_.b, s.type, "acc_im");
    if (start.index) {
        s.index_type = start.index->getType();
        s.index = entry_alloca(c_.b, s.index_type, "acc_index");
    }
    store(s, start);
    return s;
}

Partial Accumulators::load(const Slot& s) {
    Partial p;
    p.value.re = c_.b.CreateLoad(s.type, s.re);
    if (s.im) p.value.im = c_.b.CreateLoad(s.type, s.im);
    if (s.index) p.index = c_.b.CreateLoad(s.index_type, s.index);
    return p;
}

void Accumulators::store(const Slot& s, const Partial& p) {
    c_.b.CreateStore(p.value.re, s.re);
    if (s.im) c_.b.CreateStore(p.value.im, s.im);
    if (s.index) c_.b.CreateStore(p.index, s.index);
}

void Accumulators::add(std::size_t r, Partial next, IrValue active) {
    llvm::IRBuilder<>& b = c_.b;
    next.value = splat(b, next.value, lanes_);
    if (next.index) {
        if (has_short_indices(phase_, reductions_[r])) next.index = with_bits(b, next.index, 32);
        next.index = splat(b, next.index, lanes_);
    }
    const Partial old = load(first_[r]);
    Partial now = combine(c_, reductions_[r], old, next);
    if (active && active->getType()->isVectorTy()) {
        now.value.re = b.CreateSelect(active, now.value.re, old.value.re);
        if (now.value.im) now.value.im = b.CreateSelect(active, now.value.im, old.value.im);
        if (now.index) now.index = b.CreateSelect(active, now.index, old.index);
    }
    store(first_[r], now);
}

void Accumulators::flush() {
    for (std::size_t i = 0; i < reductions_.size(); ++i) {
        if (!has_second(reductions_[i])) continue;
        const Reduction &first = reductions_[i], second = second_level(first);
        store(second_[i], combine(c_, second, load(second_[i]),
                                  converted(load(first_[i]), first.dtype, second.dtype)));
        store(first_[i], identity(c_, first, lanes_));
    }
}

Partial Accumulators::get(std::size_t r) {
    Partial p = load(first_[r]);
    if (const Reduction& first = reductions_[r]; has_second(first)) {
        const Reduction second = second_level(first);
        p = combine(c_, second, converted(p, first.dtype, second.dtype), load(second_[r]));
        p = converted(p, second.dtype, first.dtype);
    }
    if (p.index) p.index = with_bits(c_.b, p.index, 64);
    return p;
}

}  // namespace ingot::codegen
