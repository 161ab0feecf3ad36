// See emit_row_copy.h.
#include "codegen/llvm/emit_row_copy.h"

#include <algorithm>
#include <cmath>

#include "ir/tensor.h"

namespace ingot::codegen {

namespace {

constexpr std::int64_t kBytes = 16;       // of an access
constexpr std::size_t kWords = 4;         // of an access
constexpr std::int64_t kLongRow = 256;    // chunks, so that a row's ends do not count
constexpr std::int64_t kLarge = 1 << 22;  // bytes

bool steps_by_one(Expr offset, Expr var) {
    const auto form = linear_in(offset, var);
    return form && form->stride.is(1);
}

/// Where the condition is `along < n`: n.
std::optional<std::int64_t> bound(const std::vector<Inst>& insts, InstId mask, Expr along) {
    const Inst& less = insts[mask];
    if (less.kind != InstKind::Prim || less.prim != Prim::Lt) return std::nullopt;
    const Inst &index = insts[less.operands[0]], &limit = insts[less.operands[1]];
    if (index.kind != InstKind::Index || !(index.offset == along)) return std::nullopt;
    if (limit.kind != InstKind::Constant || !is_integral(limit.dtype)) return std::nullopt;
    return limit.constant.to_int();
}

bool is_zero(const Scalar& value, DType type) {
    const double number = to_num(value, type).re;
    return !is_complex(type) &&
           (is_float(type) ? number == 0 && !std::signbit(number) : value.to_int() == 0);
}

}  // namespace

std::optional<RowCopy> find_row_copy(const Kernel& kernel, const Nest& nest) {
    if (nest.loops.empty() || nest.loops.back().kind == LoopKind::Run || nest.phases.size() != 1)
        return std::nullopt;
    const Phase& phase = nest.phases[0];
    if (!phase.loops.empty() || !phase.reductions.empty() || phase.stores.size() != 1)
        return std::nullopt;
    const Store& store = phase.stores[0];
    // Zeros are chosen by the load itself, or behind it.
    const Inst& chosen = phase.insts[store.value];
    const bool selects = chosen.kind == InstKind::Prim && chosen.prim == Prim::Select;
    const Inst& load = selects ? phase.insts[chosen.operands[1]] : chosen;
    if (store.mode != StoreMode::Write || store.mask != kNone || load.kind != InstKind::Load)
        return std::nullopt;
    const KernelBuffer& to = kernel.buffers[static_cast<std::size_t>(store.buffer)];
    const KernelBuffer& from = kernel.buffers[static_cast<std::size_t>(load.buffer)];
    if (to.dtype != from.dtype || to.read || from.written || bytes(to.dtype) > 4 ||
        to.scope != BufferScope::Argument || from.scope != BufferScope::Argument)
        return std::nullopt;
    for (const Inst& i : phase.insts)
        if (i.kind == InstKind::Bind || (i.kind == InstKind::Load && &i != &load))
            return std::nullopt;
    const Loop& last = nest.loops.back();
    if (!last.extent.is_constant() || !steps_by_one(load.offset, last.var) ||
        !steps_by_one(store.offset, last.var))
        return std::nullopt;
    RowCopy copy;
    copy.load = &load;
    copy.store = &store;
    copy.along = last.var;
    copy.length = copy.source = last.extent.constant();
    copy.chunk = kBytes / bytes(to.dtype);
    if (selects || load.mask != kNone) {
        const InstId mask = selects ? chosen.operands[0] : load.mask;
        const auto source = bound(phase.insts, mask, last.var);
        if (!source || (load.mask != kNone && load.mask != mask)) return std::nullopt;
        const Inst* other = selects ? &phase.insts[chosen.operands[2]] : &load;
        if ((selects && other->kind != InstKind::Constant) || !is_zero(other->constant, to.dtype))
            return std::nullopt;
        copy.source = std::clamp<std::int64_t>(*source, 0, copy.length);
    }
    Expr rows = 1;
    for (const Loop& l : nest.loops)
        if (!(l.var == last.var)) rows = rows * l.extent;
    if (!rows.is_constant() || copy.length < kLongRow * copy.chunk ||
        rows.constant() * copy.length * bytes(to.dtype) < kLarge)
        return std::nullopt;
    return copy;
}

llvm::Type* RowCopier::element_type() {
    return b_.getIntNTy(static_cast<unsigned>(8 * kBytes / copy_.chunk));
}

IrValue RowCopier::element(IrValue buffer, IrValue at) {
    return b_.CreateGEP(element_type(), buffer, at);
}

IrValue RowCopier::words_at(IrValue at) {
    auto* type = llvm::FixedVectorType::get(b_.getInt32Ty(), kWords);
    return b_.CreateAlignedLoad(type, element(from_, at), llvm::Align(kBytes));
}

void RowCopier::load(IrValue source, IrValue target, IrValue number) {
    const auto constant = [&](std::int64_t n) {
        return b_.getInt64(static_cast<std::uint64_t>(n));
    };
    IrValue aligned = constant(-copy_.chunk), zero = constant(0);
    Chunk c;
    c.source = source;
    c.target = target;
    c.at = b_.CreateSub(
        b_.CreateAdd(b_.CreateAnd(target, aligned), b_.CreateMul(number, constant(copy_.chunk))),
        target);
    c.whole = b_.CreateAnd(b_.CreateICmpSGE(c.at, zero),
                           b_.CreateICmpSLE(c.at, constant(copy_.source - copy_.chunk)));
    IrValue first = b_.CreateAdd(source, c.at),
            last = b_.CreateAdd(first, constant(copy_.chunk - 1));
    // Both hold elements that are wanted, and so are memory of the buffer's; the first 16 bytes of
    // the buffer always are.
    IrValue low = b_.CreateSelect(c.whole, b_.CreateAnd(first, aligned), zero);
    IrValue high = b_.CreateSelect(c.whole, b_.CreateAnd(last, aligned), zero);
    IrValue skipped =
        b_.CreateTrunc(b_.CreateAnd(first, constant(copy_.chunk - 1)), b_.getInt32Ty());
    c.skip = b_.CreateMul(skipped, b_.getInt32(static_cast<std::uint32_t>(kBytes / copy_.chunk)));
    for (IrValue part : {words_at(low), words_at(high)})
        for (unsigned w = 0; w < kWords; ++w) c.words.push_back(b_.CreateExtractElement(part, w));
    chunks_.push_back(std::move(c));
}

/// The 16 bytes behind the first `skip` of 32.
std::vector<IrValue> RowCopier::shifted(const Chunk& chunk) {
    std::vector<IrValue> words = chunk.words;
    for (unsigned by : {2u, 1u}) {
        IrValue yes =
            b_.CreateICmpNE(b_.CreateAnd(chunk.skip, b_.getInt32(4 * by)), b_.getInt32(0));
        std::vector<IrValue> next;
        for (std::size_t i = 0; i < kWords + by; ++i)
            next.push_back(b_.CreateSelect(yes, words[i + by], words[i]));
        words = std::move(next);
    }
    IrValue bits = b_.CreateShl(b_.CreateAnd(chunk.skip, b_.getInt32(3)), b_.getInt32(3));
    for (std::size_t i = 0; i < kWords; ++i)
        words[i] = b_.CreateIntrinsic(llvm::Intrinsic::fshr, {b_.getInt32Ty()},
                                      {words[i + 1], words[i], bits});
    words.resize(kWords);
    return words;
}

void RowCopier::store() {
    for (const Chunk& c : chunks_)
        emit_if_else(
            b_, c.whole,
            [&] {
                const std::vector<IrValue> words = shifted(c);
                IrValue all =
                    llvm::PoisonValue::get(llvm::FixedVectorType::get(b_.getInt32Ty(), kWords));
                for (unsigned w = 0; w < kWords; ++w)
                    all = b_.CreateInsertElement(all, words[w], w);
                b_.CreateAlignedStore(all, element(to_, b_.CreateAdd(c.target, c.at)),
                                      llvm::Align(kBytes));
            },
            [&] { store_elements(c); });
}

/// At the ends of rows.
void RowCopier::store_elements(const Chunk& c) {
    for (std::int64_t k = 0; k < copy_.chunk; ++k) {
        IrValue at = b_.CreateAdd(c.at, b_.getInt64(static_cast<std::uint64_t>(k)));
        const auto below = [&](std::int64_t n) {
            return b_.CreateAnd(b_.CreateICmpSGE(at, b_.getInt64(0)),
                                b_.CreateICmpSLT(at, b_.getInt64(static_cast<std::uint64_t>(n))));
        };
        const auto write = [&](IrValue value) {
            b_.CreateStore(value, element(to_, b_.CreateAdd(c.target, at)));
        };
        emit_if(b_, below(copy_.length), [&] {
            emit_if_else(
                b_, below(copy_.source),
                [&] {
                    write(
                        b_.CreateLoad(element_type(), element(from_, b_.CreateAdd(c.source, at))));
                },
                [&] { write(llvm::Constant::getNullValue(element_type())); });
        });
    }
}

}  // namespace ingot::codegen
