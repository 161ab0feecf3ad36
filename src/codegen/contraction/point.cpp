// Scalar and vector computation of insts. See point.h.
#include "codegen/contraction/point.h"

#include <optional>

#include "codegen/llvm/math.h"
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

std::optional<Expr> vector_stride(Expr e, Expr symbol, int lanes) {
    if (!contains(e, symbol)) return Expr(0);
    const ExprNode& node = *e.node();
    switch (node.kind) {
        case ExprKind::Symbol:
            return Expr(1);
        case ExprKind::Add: {
            Expr sum = 0;
            for (std::size_t n = 0; n < node.args.size(); ++n) {
                const auto s = vector_stride(node.args[n], symbol, lanes);
                if (!s) return std::nullopt;
                sum += *s * Expr(node.coefficients[n]);
            }
            return sum;
        }
        case ExprKind::Mul: {
            // One factor with the symbol.
            std::optional<Expr> stride;
            Expr rest = 1;
            for (const Expr factor : node.args) {
                if (!contains(factor, symbol)) {
                    rest = rest * factor;
                } else if (stride) {
                    return std::nullopt;
                } else {
                    stride = vector_stride(factor, symbol, lanes);
                    if (!stride) return std::nullopt;
                }
            }
            return *stride * rest;
        }
        case ExprKind::FloorDiv:
        case ExprKind::Mod: {
            // (symbol + c * lanes) // d with d a multiple of the lanes: constant over the lanes.
            if (!node.args[1].is_constant() || node.args[1].constant() % lanes != 0)
                return std::nullopt;
            const auto linear = linear_in(node.args[0], symbol);
            if (!linear || !linear->stride.is(1) || !mod(linear->rest, Expr(lanes)).is(0))
                return std::nullopt;
            return node.kind == ExprKind::FloorDiv ? Expr(0) : Expr(1);
        }
        default:
            return std::nullopt;
    }
}

llvm::Type* PointEmitter::vector(llvm::Type* element) const {
    return lanes_ ? llvm::FixedVectorType::get(element, static_cast<unsigned>(lanes_)) : element;
}

llvm::Type* PointEmitter::memory_type(DType dtype) const {
    switch (dtype) {
        case DType::F64:
            return b_.getDoubleTy();
        case DType::F32:
            return b_.getFloatTy();
        case DType::F16:
            return b_.getHalfTy();
        case DType::BF16:
            return b_.getBFloatTy();
        default:
            if (is_integral(dtype)) return b_.getIntNTy(static_cast<unsigned>(bytes(dtype)) * 8);
            throw NotSupported("contraction: element type " + std::string(name(dtype)));
    }
}

llvm::Type* PointEmitter::type(DType dtype) const {
    if (dtype == DType::Bool) return b_.getInt1Ty();
    return memory_type(compute_type(dtype));
}

Value* PointEmitter::splat(Value* v) const {
    if (!lanes_ || lanes_of(v)) return v;
    return b_.CreateVectorSplat(static_cast<unsigned>(lanes_), v);
}

Value* PointEmitter::both(Value* x, Value* y) {
    if (!x || !y) return x ? x : y;
    return b_.CreateAnd(splat(x), splat(y));
}

/// The offsets of all lanes, where they are not evenly spaced.
Value* PointEmitter::lane_offsets(Expr offset) {
    SymbolValues symbols = symbols_;
    llvm::SmallVector<llvm::Constant*, 64> iota;
    for (int n = 0; n < lanes_; ++n) iota.push_back(b_.getInt64(static_cast<std::uint64_t>(n)));
    Value*& v = symbols[symbol_.node()];
    v = b_.CreateAdd(splat(v), llvm::ConstantVector::get(iota));
    return splat(emit_expr(b_, offset, symbols));
}

Value* PointEmitter::from_memory(Value* v, DType dtype) {
    if (dtype == DType::Bool) return b_.CreateICmpNE(v, llvm::Constant::getNullValue(v->getType()));
    if (is_reduced_float(dtype)) {
        llvm::Type* wide = lanes_of(v) ? vector(b_.getFloatTy()) : b_.getFloatTy();
        return b_.CreateFPExt(v, wide);
    }
    return v;
}

Value* PointEmitter::to_memory(Value* v, DType dtype) {
    llvm::Type* to = lanes_of(v) ? vector(memory_type(dtype)) : memory_type(dtype);
    if (dtype == DType::Bool) return b_.CreateZExt(v, to);
    if (is_reduced_float(dtype)) return b_.CreateFPTrunc(v, to);
    return v;
}

Value* PointEmitter::rounded(Value* v, DType dtype) {
    if (!round_ || !is_reduced_float(dtype)) return v;
    return from_memory(to_memory(v, dtype), dtype);
}

Value* PointEmitter::constant(const Scalar& value, DType dtype) {
    llvm::Type* t = type(dtype);
    if (t->isFloatingPointTy()) return llvm::ConstantFP::get(t, value.to_double());
    return llvm::ConstantInt::get(t, static_cast<std::uint64_t>(value.to_int()));
}

Value* PointEmitter::load(const Inst& inst, Value* mask) {
    const DType dtype = buffers_.kernel.buffers[static_cast<std::size_t>(inst.buffer)].dtype;
    llvm::Type* element = memory_type(dtype);
    Value* base = buffers_.pointers[static_cast<std::size_t>(inst.buffer)];
    const llvm::Align align(static_cast<std::uint64_t>(bytes(dtype)));
    const auto stride = lanes_ ? vector_stride(inst.offset, symbol_, lanes_) : Expr(0);
    Value* otherwise = to_memory(constant(inst.constant, dtype), dtype);
    if (stride && stride->is(0) && (!mask || !lanes_of(mask))) {
        Value* at = emit_expr(b_, inst.offset, symbols_);
        // A load that must not happen reads element 0 of the buffer's start instead.
        if (mask) at = b_.CreateSelect(mask, at, i64(b_, 0));
        Value* v = b_.CreateAlignedLoad(element, b_.CreateGEP(element, base, at), align);
        if (mask) v = b_.CreateSelect(mask, v, otherwise);
        return from_memory(v, dtype);
    }
    Value* active = both(mask, mask_);
    if (active) active = splat(active);
    if (stride && stride->is(1)) {
        Value* at = b_.CreateGEP(element, base, emit_expr(b_, inst.offset, symbols_));
        if (!active) return from_memory(b_.CreateAlignedLoad(vector(element), at, align), dtype);
        return from_memory(
            b_.CreateMaskedLoad(vector(element), at, align, active, splat(otherwise)), dtype);
    }
    Value* at = b_.CreateGEP(element, base, lane_offsets(inst.offset));
    if (!active) active = llvm::Constant::getAllOnesValue(vector(b_.getInt1Ty()));
    return from_memory(b_.CreateMaskedGather(vector(element), at, align, active, splat(otherwise)),
                       dtype);
}

void PointEmitter::store(const Store& store, const std::vector<Value*>& values, DType) {
    const DType dtype = buffers_.kernel.buffers[static_cast<std::size_t>(store.buffer)].dtype;
    llvm::Type* element = memory_type(dtype);
    Value* base = buffers_.pointers[static_cast<std::size_t>(store.buffer)];
    const llvm::Align align(static_cast<std::uint64_t>(bytes(dtype)));
    if (store.mode != StoreMode::Write) throw NotSupported("contraction: atomic store");
    Value* value = to_memory(splat(values[store.value]), dtype);
    Value* active = mask_;
    if (store.mask != kNone) active = both(values[store.mask], mask_);
    if (active) active = splat(active);
    if (!lanes_) throw InternalError("contraction: scalar store");
    const auto stride = vector_stride(store.offset, symbol_, lanes_);
    if (stride && stride->is(1)) {
        Value* at = b_.CreateGEP(element, base, emit_expr(b_, store.offset, symbols_));
        if (active)
            b_.CreateMaskedStore(value, at, align, active);
        else
            b_.CreateAlignedStore(value, at, align);
        return;
    }
    if (!active) active = llvm::Constant::getAllOnesValue(vector(b_.getInt1Ty()));
    b_.CreateMaskedScatter(value, b_.CreateGEP(element, base, lane_offsets(store.offset)), align,
                           active);
}

Value* PointEmitter::convert(Value* v, DType from, DType to) {
    if (from == to) return v;
    llvm::Type* target = lanes_of(v) ? vector(type(to)) : type(to);
    if (to == DType::Bool) {
        Value* zero = llvm::Constant::getNullValue(v->getType());
        return is_float(from) ? b_.CreateFCmpUNE(v, zero) : b_.CreateICmpNE(v, zero);
    }
    const bool is_unsigned = is_unsigned_int(from) || from == DType::Bool;
    if (is_float(from) && is_float(to)) return b_.CreateFPCast(v, target);
    if (is_float(from))
        return is_unsigned_int(to) ? b_.CreateFPToUI(v, target) : b_.CreateFPToSI(v, target);
    if (is_float(to)) return is_unsigned ? b_.CreateUIToFP(v, target) : b_.CreateSIToFP(v, target);
    return b_.CreateIntCast(v, target, !is_unsigned);
}

Value* PointEmitter::inst(const std::vector<Inst>& insts, const Inst& inst,
                          const std::vector<Value*>& values) {
    switch (inst.kind) {
        case InstKind::Load:
            return load(inst, inst.mask == kNone ? nullptr : values[inst.mask]);
        case InstKind::Constant:
            return constant(inst.constant, inst.dtype);
        case InstKind::Accumulator:
            return rounded(accumulator, inst.dtype);
        case InstKind::Index: {
            const bool varies = lanes_ && contains(inst.offset, symbol_);
            Value* v = varies ? lane_offsets(inst.offset) : emit_expr(b_, inst.offset, symbols_);
            return convert(v, DType::I64, inst.dtype);
        }
        case InstKind::Prim: {
            std::vector<Value*> x;
            for (const InstId o : inst.operands) x.push_back(values[o]);
            for (Value*& v : x)
                for (Value* w : x)
                    if (lanes_of(w)) v = splat(v);
            return rounded(prim(insts, inst, x), inst.dtype);
        }
        case InstKind::Reduced:
        case InstKind::Bind:
            break;
    }
    throw NotSupported("contraction: instruction kind");
}

Value* PointEmitter::emit_one(const std::vector<Inst>& insts, InstId id) {
    std::vector<bool> needed(insts.size(), false);
    needed[id] = true;
    for (InstId n = id + 1; n-- > 0;) {
        if (!needed[n]) continue;
        for (const InstId o : insts[n].operands) needed[o] = true;
        if (insts[n].mask != kNone) needed[insts[n].mask] = true;
    }
    std::vector<Value*> values(insts.size(), nullptr);
    for (InstId n = 0; n <= id; ++n)
        if (needed[n]) values[n] = inst(insts, insts[n], values);
    return values[id];
}

std::vector<Value*> PointEmitter::emit(const std::vector<Inst>& insts) {
    std::vector<Value*> values;
    for (const Inst& i : insts) values.push_back(inst(insts, i, values));
    return values;
}

Value* PointEmitter::prim(const std::vector<Inst>& insts, const Inst& inst,
                          const std::vector<Value*>& x) {
    const DType operand = inst.operands.empty() ? inst.dtype : insts[inst.operands[0]].dtype;
    const bool fp = is_float(operand);
    auto compare = [&](llvm::CmpInst::Predicate f, llvm::CmpInst::Predicate s,
                       llvm::CmpInst::Predicate u) {
        if (fp) return b_.CreateFCmp(f, x[0], x[1]);
        return b_.CreateICmp(is_signed_int(operand) ? s : u, x[0], x[1]);
    };
    auto math = [&](MathFn fn) {
        MathContext context{b_, target_};
        return emit_math(context, fn, x);
    };
    using P = llvm::CmpInst;
    switch (inst.prim) {
        case Prim::Eq:
            return compare(P::FCMP_OEQ, P::ICMP_EQ, P::ICMP_EQ);
        case Prim::Ne:
            return compare(P::FCMP_UNE, P::ICMP_NE, P::ICMP_NE);
        case Prim::Lt:
            return compare(P::FCMP_OLT, P::ICMP_SLT, P::ICMP_ULT);
        case Prim::Le:
            return compare(P::FCMP_OLE, P::ICMP_SLE, P::ICMP_ULE);
        case Prim::Gt:
            return compare(P::FCMP_OGT, P::ICMP_SGT, P::ICMP_UGT);
        case Prim::Ge:
            return compare(P::FCMP_OGE, P::ICMP_SGE, P::ICMP_UGE);
        case Prim::LogicalAnd:
            if (operand == DType::Bool) return b_.CreateAnd(x[0], x[1]);
            break;
        case Prim::LogicalOr:
            if (operand == DType::Bool) return b_.CreateOr(x[0], x[1]);
            break;
        case Prim::LogicalNot:
            if (operand == DType::Bool) return b_.CreateNot(x[0]);
            break;
        case Prim::Select:
            return b_.CreateSelect(x[0], x[1], x[2]);
        case Prim::Convert:
            return convert(x[0], operand, inst.dtype);
        default:
            break;
    }
    if (!fp) throw NotSupported("contraction: integer prim " + std::string(name(inst.prim)));
    switch (inst.prim) {
        case Prim::Add:
            return b_.CreateFAdd(x[0], x[1]);
        case Prim::Sub:
            return b_.CreateFSub(x[0], x[1]);
        case Prim::Mul:
            return b_.CreateFMul(x[0], x[1]);
        case Prim::Div:
            return b_.CreateFDiv(x[0], x[1]);
        case Prim::Neg:
            return b_.CreateFNeg(x[0]);
        case Prim::Abs:
            return b_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x[0]);
        case Prim::Relu: {
            Value* zero = llvm::Constant::getNullValue(x[0]->getType());
            return b_.CreateSelect(b_.CreateFCmpOLE(x[0], zero), zero, x[0]);
        }
        case Prim::Maximum:
            return b_.CreateSelect(
                b_.CreateOr(b_.CreateFCmpUNO(x[0], x[0]), b_.CreateFCmpOGT(x[0], x[1])), x[0],
                x[1]);
        case Prim::Minimum:
            return b_.CreateSelect(
                b_.CreateOr(b_.CreateFCmpUNO(x[0], x[0]), b_.CreateFCmpOLT(x[0], x[1])), x[0],
                x[1]);
        case Prim::Fma:
            return b_.CreateIntrinsic(llvm::Intrinsic::fma, {x[0]->getType()}, x);
        case Prim::Exp:
            return math(MathFn::Exp);
        case Prim::Erf:
            return math(MathFn::Erf);
        case Prim::Tanh:
            return math(MathFn::Tanh);
        case Prim::Sigmoid:
            return math(MathFn::Sigmoid);
        case Prim::Sqrt:
            return math(MathFn::Sqrt);
        case Prim::Rsqrt:
            return math(MathFn::Rsqrt);
        default:
            throw NotSupported("contraction: prim " + std::string(name(inst.prim)));
    }
}

}  // namespace ingot::codegen
