// Scalar and vector computation of insts. See point.h.
#include "codegen/contraction/point.h"

#include "ir/error.h"

namespace ingot::codegen {
namespace {

using llvm::Value;

unsigned lanes_of(Value* v) {
    const auto* type = llvm::dyn_cast<llvm::FixedVectorType>(v->getType());
    return type ? type->getNumElements() : 0;
}

/// Both operands as vectors when one of them is.
void match(llvm::IRBuilder<>& b, Value*& x, Value*& y) {
    if (lanes_of(x) && !lanes_of(y)) y = b.CreateVectorSplat(lanes_of(x), y);
    if (lanes_of(y) && !lanes_of(x)) x = b.CreateVectorSplat(lanes_of(y), x);
}

Value* i64(llvm::IRBuilder<>& b, std::int64_t v) {
    return b.getInt64(static_cast<std::uint64_t>(v));
}

Value* binary(llvm::IRBuilder<>& b, ExprKind kind, Value* x, Value* y, bool non_negative) {
    match(b, x, y);
    switch (kind) {
        case ExprKind::Add:
            return b.CreateAdd(x, y);
        case ExprKind::Mul:
            return b.CreateMul(x, y);
        case ExprKind::Min:
            return b.CreateBinaryIntrinsic(llvm::Intrinsic::smin, x, y);
        case ExprKind::Max:
            return b.CreateBinaryIntrinsic(llvm::Intrinsic::smax, x, y);
        case ExprKind::FloorDiv:
        case ExprKind::Mod: {
            const bool divide = kind == ExprKind::FloorDiv;
            if (non_negative) return divide ? b.CreateUDiv(x, y) : b.CreateURem(x, y);
            Value* zero = llvm::Constant::getNullValue(x->getType());
            Value* remainder = b.CreateSRem(x, y);
            Value* wrong = b.CreateAnd(b.CreateICmpNE(remainder, zero),
                                       b.CreateICmpSLT(b.CreateXor(remainder, y), zero));
            if (divide) return b.CreateSub(b.CreateSDiv(x, y), b.CreateZExt(wrong, x->getType()));
            return b.CreateAdd(remainder, b.CreateSelect(wrong, y, zero));
        }
        case ExprKind::Symbol:
            break;
    }
    throw InternalError("contraction: unexpected expression");
}

}  // namespace

Value* emit_expr(llvm::IRBuilder<>& b, Expr e, const SymbolValues& symbols) {
    if (e.is_constant()) return i64(b, e.constant());
    const ExprNode& node = *e.node();
    switch (node.kind) {
        case ExprKind::Symbol: {
            const auto found = symbols.find(&node);
            if (found == symbols.end())
                throw InternalError("contraction: unbound symbol " + node.symbol);
            return found->second;
        }
        case ExprKind::Add: {
            Value* sum = i64(b, node.constant);
            for (std::size_t n = 0; n < node.args.size(); ++n)
                sum = binary(b, ExprKind::Add,
                             binary(b, ExprKind::Mul, emit_expr(b, node.args[n], symbols),
                                    i64(b, node.coefficients[n]), false),
                             sum, false);
            return sum;
        }
        default: {
            Value* result = emit_expr(b, node.args[0], symbols);
            const bool non_negative =
                node.args[0].range().lo >= 0 && node.args.back().range().lo > 0;
            for (std::size_t n = 1; n < node.args.size(); ++n)
                result =
                    binary(b, node.kind, result, emit_expr(b, node.args[n], symbols), non_negative);
            return result;
        }
    }
}

void bind_loops(llvm::IRBuilder<>& b, Value* flat, const std::vector<Loop>& loops,
                SymbolValues& symbols) {
    for (std::size_t n = loops.size(); n-- > 0;) {
        const Loop& loop = loops[n];
        if (n == 0) {
            symbols[loop.var.node()] = flat;
        } else {
            Value* extent = emit_expr(b, loop.extent, symbols);
            symbols[loop.var.node()] = b.CreateURem(flat, extent);
            flat = b.CreateUDiv(flat, extent);
        }
    }
}

std::vector<Value*> Odometer::start(llvm::IRBuilder<>& b, Value* flat,
                                    const SymbolValues& symbols) const {
    SymbolValues bound = symbols;
    bind_loops(b, flat, loops_, bound);
    std::vector<Value*> at;
    for (const Loop& l : loops_) at.push_back(bound.at(l.var.node()));
    return at;
}

void Odometer::bind(const std::vector<Value*>& at, SymbolValues& symbols) const {
    for (std::size_t n = 0; n < loops_.size(); ++n) symbols[loops_[n].var.node()] = at[n];
}

std::vector<Value*> Odometer::next(llvm::IRBuilder<>& b, const std::vector<Value*>& at,
                                   const SymbolValues& symbols) const {
    std::vector<Value*> result = at;
    Value* carry = b.getInt64(1);
    for (std::size_t n = loops_.size(); n-- > 0;) {
        result[n] = b.CreateAdd(at[n], carry);
        if (n == 0) break;
        Value* wraps = b.CreateICmpEQ(result[n], emit_expr(b, loops_[n].extent, symbols));
        result[n] = b.CreateSelect(wraps, b.getInt64(0), result[n]);
        carry = b.CreateZExt(wraps, b.getInt64Ty());
    }
    return result;
}

PointEmitter::PointEmitter(llvm::IRBuilder<>& b, const TargetInfo& target, const Buffers& buffers,
                           bool round_intermediates)
    : context_{b, target, buffers.error},
      index_(b),
      body_(context_, index_, buffers.list, BodyOptions{round_intermediates}),
      round_(round_intermediates) {
    body_.accumulator = [this](const Inst& inst) {
        const Lanes sum{accumulator};
        return round_ ? round_to(context_, inst.dtype, sum) : sum;
    };
}

void PointEmitter::vectorize(Expr symbol, int lanes, Value* mask) {
    symbol_ = symbol;
    lanes_ = lanes;
    mask_ = mask;
}

void PointEmitter::begin(const std::vector<Inst>& insts) {
    for (const auto& [node, value] : symbols) index_.bind(Expr(node), value);
    if (lanes_ > 1) index_.set_vector(symbol_, static_cast<unsigned>(lanes_));
    body_.set_active(mask_);
    body_.begin(insts);
}

Value* PointEmitter::emit_one(const std::vector<Inst>& insts, InstId id) {
    std::vector<bool> needed(insts.size(), false);
    needed[id] = true;
    for (InstId n = id + 1; n-- > 0;) {
        if (!needed[n]) continue;
        for (const InstId o : insts[n].operands) needed[o] = true;
        if (insts[n].mask != kNone) needed[insts[n].mask] = true;
    }
    begin(insts);
    for (InstId n = 0; n <= id; ++n)
        if (needed[n]) body_.emit(n);
    return value(id);
}

void PointEmitter::emit(const std::vector<Inst>& insts) {
    begin(insts);
    body_.emit_all();
}

}  // namespace ingot::codegen
