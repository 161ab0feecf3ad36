// The body of a loop; see emit_body.h.
#include "codegen/llvm/emit_body.h"

#include <cmath>

#include "codegen/compiled.h"
#include "codegen/llvm/emit_philox.h"
#include "codegen/llvm/emit_prims.h"
#include "ir/error.h"

namespace ingot::codegen {

void BodyEmitter::begin(std::span<const Inst> insts) {
    insts_ = insts;
    values_.assign(insts.size(), Lanes());
    preset_.assign(insts.size(), false);
}

void BodyEmitter::emit(InstId id) {
    if (preset_[id]) return;
    const Inst& inst = insts_[id];
    switch (inst.kind) {
        case InstKind::Prim:
            values_[id] = prim(inst);
            break;
        case InstKind::Load:
            values_[id] = load(inst);
            break;
        case InstKind::Index:
            values_[id] = number_of(inst);
            break;
        case InstKind::Constant:
            values_[id] = constant(c_.b.getContext(), inst.dtype, inst.constant);
            break;
        case InstKind::Reduced:
            values_[id] = reduced(inst);
            break;
        case InstKind::Accumulator:
            values_[id] = accumulator(inst);
            break;
        case InstKind::Bind:
            bind(inst);
            break;
    }
}

/// Where element `a` of every lane's own elements lies.
Address BodyEmitter::interleaved(Address a) {
    const std::int64_t lanes = index_.lanes();
    a.base = c_.b.CreateMul(a.base, c_.b.getInt64(static_cast<std::uint64_t>(lanes)));
    if (a.stride) {
        a.stride = *a.stride * lanes + 1;
        return a;
    }
    llvm::Type* type = a.offsets->getType();
    a.offsets = c_.b.CreateAdd(
        c_.b.CreateMul(a.offsets, llvm::ConstantInt::get(type, static_cast<std::uint64_t>(lanes))),
        IndexEmitter::iota(type->getScalarType(), index_.lanes()));
    return a;
}

Address BodyEmitter::address(const BufferRef& buffer, Expr offset, bool& varying) {
    Address a;
    const auto stride = index_.lane_stride(offset);
    if (buffer.alignment != 0) a.alignment = index_.alignment(offset);
    if (stride && stride->is_constant()) {
        a.base = index_.scalar(offset);
        a.stride = stride->constant();
    } else if (stride) {
        a.base = index_.scalar(offset);
        llvm::Type* i64 = c_.b.getInt64Ty();
        a.offsets = c_.b.CreateMul(IndexEmitter::iota(i64, index_.lanes()),
                                   splat(c_.b, index_.scalar(*stride), index_.lanes()));
    } else {
        a.base = c_.b.getInt64(0);
        a.offsets = index_.vector(offset);
    }
    if (buffer.per_lane && index_.lanes() > 1) a = interleaved(a);
    varying = index_.lanes() > 1 && a.stride != 0;
    return a;
}

/// The instruction's own mask together with the active lanes, which concern varying accesses only:
/// a body runs when at least one lane is active.
IrValue BodyEmitter::access_mask(InstId mask, bool varying) {
    IrValue own = mask == kNone ? nullptr : values_[mask].re;
    if (!active_ || !(varying || (own && own->getType()->isVectorTy()))) return own;
    return own ? c_.b.CreateAnd(splat(c_.b, own, index_.lanes()), active_) : active_;
}

/// Whether where the mask fails there are zeros of 16 bits, and the buffer's beginning to read.
bool BodyEmitter::zero_elsewhere(const BufferRef& buffer, const Inst& inst) const {
    const double other = inst.constant.to_double();
    return (buffer.dtype == DType::BF16 || buffer.dtype == DType::F16) &&
           buffer.readable >= index_.lanes() && index_.lanes() % 2 == 0 && other == 0 &&
           !std::signbit(other);
}

/// Neighbours under one mask, two of which are a word: half as many choices as of widened ones.
IrValue BodyEmitter::load_pairs(const BufferRef& buffer, const Address& at, IrValue mask) {
    BufferRef raw = buffer;
    raw.dtype = DType::U16;
    IrValue bits = emit_load(c_, raw, at, mask, index_.lanes()).re;
    llvm::Type* type = bits->getType();
    auto* words = llvm::FixedVectorType::get(c_.b.getInt32Ty(), index_.lanes() / 2);
    bits = c_.b.CreateBitCast(bits, words);
    bits = c_.b.CreateSelect(mask, bits, llvm::Constant::getNullValue(words));
    return from_storage(c_, buffer.dtype, c_.b.CreateBitCast(bits, type));
}

Lanes BodyEmitter::load(const Inst& inst) {
    bool varying = false;
    const BufferRef& buffer = buffers_[static_cast<std::size_t>(inst.buffer)];
    const Address at = address(buffer, inst.offset, varying);
    IrValue mask = access_mask(inst.mask, varying);
    if (mask && !active_ && varying && zero_elsewhere(buffer, inst) &&
        !mask->getType()->isVectorTy())
        return {load_pairs(buffer, at, mask)};
    Lanes r = emit_load(c_, buffer, at, mask, index_.lanes());
    if (inst.mask == kNone) return r;
    // The value where the mask fails.
    IrValue own = values_[inst.mask].re;
    Lanes other = constant(c_.b.getContext(), inst.dtype, inst.constant);
    if (r.varying() || own->getType()->isVectorTy()) {
        r = splat(c_.b, r, index_.lanes());
        other = splat(c_.b, other, index_.lanes());
    }
    r.re = c_.b.CreateSelect(own, r.re, other.re);
    if (r.im) r.im = c_.b.CreateSelect(own, r.im, other.im);
    return r;
}

Lanes BodyEmitter::number_of(const Inst& inst) {
    const auto stride = index_.lane_stride(inst.offset);
    IrValue v = stride && stride->is(0) ? index_.scalar(inst.offset) : index_.vector(inst.offset);
    const bool wide = v->getType()->getScalarSizeInBits() == 64;
    return convert(c_, wide ? DType::I64 : DType::I32, inst.dtype, {v});
}

/// Neighbours for which eager draws from the same blocks; empty for any others.
Lanes BodyEmitter::philox(const Inst& inst) {
    const Inst& place = insts_[inst.operands[0]];
    const Lanes &seed = values_[inst.operands[1]], &offset = values_[inst.operands[2]];
    const PhiloxLayout layout = PhiloxLayout::unpacked(inst.imm);
    const unsigned lanes = index_.lanes();
    if (place.kind != InstKind::Index || layout.width < 4 || lanes % 4 != 0 || lanes == 0 ||
        inst.dtype != DType::I64 || seed.varying() || offset.varying())
        return {};
    const auto step = index_.lane_stride(place.offset);
    if (!step || !step->is(1) || index_.alignment(place.offset) % 4 != 0) return {};
    return {emit_philox_neighbours(c_.b, index_.scalar(place.offset), lanes, seed.re, offset.re,
                                   layout)};
}

Lanes BodyEmitter::prim(const Inst& inst) {
    if (inst.prim == Prim::Philox)
        if (const Lanes r = philox(inst); r.re) return r;
    std::vector<Lanes> operands;
    bool varying = false;
    for (InstId o : inst.operands) {
        operands.push_back(values_[o]);
        check(operands.back().re != nullptr, "an operand comes after its use");
        varying = varying || operands.back().varying();
    }
    if (varying)
        for (Lanes& o : operands) o = splat(c_.b, o, index_.lanes());
    PrimCall call;
    call.prim = inst.prim;
    call.result = inst.dtype;
    call.operand = insts_[inst.operands[inst.prim == Prim::Select ? 1 : 0]].dtype;
    call.operands = operands;
    call.imm = inst.imm;
    call.active = active_;
    Lanes r = emit_prim(c_, call);
    return options_.round_intermediates ? round_to(c_, inst.dtype, r) : r;
}

void BodyEmitter::bind(const Inst& inst) {
    llvm::IRBuilder<>& b = c_.b;
    IrValue v =
        convert(c_, insts_[inst.operands[0]].dtype, DType::I64, values_[inst.operands[0]]).re;
    if (inst.imm != kBindAny) {
        const auto stride = index_.lane_stride(inst.extent);
        check(stride && stride->is(0), "a bound index with an extent that varies");
        IrValue extent = splat(b, index_.scalar(inst.extent), lanes_of(v));
        IrValue zero = llvm::ConstantInt::get(v->getType(), 0);
        if (inst.imm == kBindFromEnds)
            v = b.CreateSelect(b.CreateICmpSLT(v, zero), b.CreateAdd(v, extent), v);
        IrValue outside = b.CreateICmpUGE(v, extent);
        flag_error(c_, outside, active_, kIndexOutOfRange);
        v = b.CreateSelect(outside, zero, v);
        // Lanes that are not active hold zeros, or numbers no load will touch.
    }
    index_.bind(inst.offset, v);
}

/// When vectors stored at `offset` may go past the caches: null for never.
IrValue BodyEmitter::aligned_stream(const BufferRef& buffer, Expr offset) const {
    if (!buffer.streamable) return nullptr;
    const std::int64_t step = index_.alignment(offset) * bytes(buffer.dtype);
    return step % 64 == 0 ? buffer.streamable : nullptr;
}

void BodyEmitter::store(const Store& store) {
    bool varying = false;
    const BufferRef& buffer = buffers_[static_cast<std::size_t>(store.buffer)];
    const Address at = address(buffer, store.offset, varying);
    Lanes value = values_[store.value];
    IrValue mask = store.mask == kNone ? nullptr : values_[store.mask].re;
    const unsigned lanes = index_.lanes();
    const bool add = store.mode == StoreMode::AtomicAdd;
    const bool vector =
        varying || value.varying() || (mask && mask->getType()->isVectorTy()) || add;
    if (lanes > 1 && vector) {
        if (active_) mask = mask ? c_.b.CreateAnd(splat(c_.b, mask, lanes), active_) : active_;
        if (add)
            emit_atomic_add(c_, buffer, at, value, mask, lanes);
        else
            emit_store(c_, buffer, at, value, mask, lanes, aligned_stream(buffer, store.offset));
        return;
    }
    if (add)
        emit_atomic_add(c_, buffer, at, value, mask, 1);
    else
        emit_store(c_, buffer, at, value, mask, 1);
}

}  // namespace ingot::codegen
