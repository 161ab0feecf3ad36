// Loads and stores of lanes; see emit_memory.h.
#include "codegen/llvm/emit_memory.h"

#include <llvm/IR/Constants.h>
#include <llvm/IR/Module.h>

#include <numeric>
#include <vector>

#include "codegen/llvm/emit_index.h"

namespace ingot::codegen {

namespace {

llvm::Align alignment_of(DType t) {
    return llvm::Align(static_cast<std::uint64_t>(bytes(real_type(t))));
}

/// One access, with what its parts share.
class Access {
  public:
    Access(EmitContext& c, const BufferRef& buffer, const Address& at, IrValue mask, unsigned lanes)
        : c_(c),
          b(c.b),
          buffer_(buffer),
          at_(at),
          mask_(mask),
          lanes_(lanes),
          parts_(is_complex(buffer.dtype) ? 2 : 1),
          element_(storage_type(c.b.getContext(), buffer.dtype)) {}

    IrValue pointer(std::int64_t elements = 0, unsigned part = 0) {
        IrValue offset = at_.base;
        if (elements != 0)
            offset = b.CreateAdd(offset, b.getInt64(static_cast<std::uint64_t>(elements)));
        if (parts_ == 2) offset = b.CreateShl(offset, 1);
        IrValue p = b.CreateGEP(element_, buffer_.pointer, offset);
        return part ? b.CreateConstGEP1_64(element_, p, part) : p;
    }

    bool uniform() const { return lanes_ <= 1 || at_.stride == 0; }

    Lanes load() {
        if (uniform() && !(mask_ && mask_->getType()->isVectorTy())) return load_scalar();
        if (at_.stride == 1 || at_.stride == -1) return load_contiguous();
        if (!mask_ && parts_ == 1 && at_.stride && *at_.stride > 1 && *at_.stride <= 4 &&
            lanes_ >= 4)
            return {finish(load_strided(static_cast<unsigned>(*at_.stride)))};
        Lanes r;
        r.re = finish(gather(0));
        if (parts_ == 2) r.im = finish(gather(1));
        return r;
    }

    void store(Lanes value, IrValue streaming) {
        value.re = to_storage(c_, buffer_.dtype, value.re);
        if (lanes_ <= 1) {
            auto write = [&] {
                for (unsigned p = 0; p < parts_; ++p)
                    b.CreateAlignedStore(p ? value.im : value.re, pointer(0, p),
                                         alignment_of(buffer_.dtype));
            };
            if (mask_)
                emit_if(b, mask_, write);
            else
                write();
            return;
        }
        if (at_.stride == 1 || at_.stride == -1) return store_contiguous(value, streaming);
        scatter(value.re, 0);
        if (parts_ == 2) scatter(value.im, 1);
    }

    IrValue pointers(unsigned part) {
        IrValue offsets = at_.offsets;
        if (!offsets) {
            const std::int64_t step = *at_.stride;
            const bool small = std::abs(step) * static_cast<std::int64_t>(lanes_) < (1 << 29);
            offsets = IndexEmitter::iota(small ? b.getInt32Ty() : b.getInt64Ty(), lanes_, step);
        }
        if (parts_ == 2)  // may leave 32 bits
            offsets = b.CreateShl(b.CreateSExt(offsets, with_lanes(b.getInt64Ty(), lanes_)), 1);
        return b.CreateGEP(element_, pointer(0, part), offsets);
    }
    llvm::Type* element() const { return element_; }
    IrValue lane_mask() {
        if (!mask_) return llvm::Constant::getAllOnesValue(with_lanes(b.getInt1Ty(), lanes_));
        return splat(b, mask_, lanes_);
    }

  private:
    IrValue finish(IrValue stored) { return from_storage(c_, buffer_.dtype, stored); }

    // A masked scalar reads a harmless place instead of branching.
    Lanes load_scalar() {
        IrValue p = pointer();
        if (mask_) {
            llvm::Type* safe = llvm::ArrayType::get(b.getInt64Ty(), 2);
            IrValue zeros = entry_alloca(b, safe, "safe");
            b.CreateStore(llvm::Constant::getNullValue(safe), zeros);
            p = b.CreateSelect(mask_, p, zeros);
        }
        Lanes r{finish(b.CreateAlignedLoad(element_, p, alignment_of(buffer_.dtype)))};
        if (parts_ == 2)
            r.im = b.CreateAlignedLoad(element_, b.CreateConstGEP1_64(element_, p, 1),
                                       alignment_of(buffer_.dtype));
        return r;
    }

    std::vector<int> every(unsigned first, unsigned step, unsigned count) const {
        std::vector<int> m;
        for (unsigned i = 0; i < count; ++i) m.push_back(static_cast<int>(first + i * step));
        return m;
    }
    std::vector<int> reversed() const {
        std::vector<int> m(lanes_);
        for (unsigned i = 0; i < lanes_; ++i) m[i] = static_cast<int>(lanes_ - 1 - i);
        return m;
    }
    /// The mask in memory order, each lane repeated for the parts of a complex number.
    IrValue memory_mask() {
        IrValue m = lane_mask();
        if (at_.stride == -1) m = b.CreateShuffleVector(m, reversed());
        if (parts_ == 2) {
            std::vector<int> twice;
            for (unsigned i = 0; i < lanes_; ++i) twice.insert(twice.end(), 2, static_cast<int>(i));
            m = b.CreateShuffleVector(m, twice);
        }
        return m;
    }
    /// Of neighbouring lanes: GPUs load them at once only where they know that they may.
    llvm::Align vector_alignment() const {
        const llvm::Align own = alignment_of(buffer_.dtype);
        if (buffer_.alignment == 0 || at_.stride != 1) return own;
        const auto offset = static_cast<std::uint64_t>(at_.alignment) * own.value() * parts_;
        const std::uint64_t all = std::gcd(buffer_.alignment, offset);
        return std::max(own, llvm::Align(all & (~all + 1)));
    }
    std::int64_t first_element() const {
        return at_.stride == -1 ? 1 - static_cast<std::int64_t>(lanes_) : 0;
    }

    Lanes load_contiguous() {
        llvm::Type* type = llvm::FixedVectorType::get(element_, lanes_ * parts_);
        IrValue p = pointer(first_element());
        const llvm::Align align = vector_alignment();
        IrValue raw = mask_ ? b.CreateMaskedLoad(type, p, align, memory_mask(),
                                                 llvm::Constant::getNullValue(type))
                            : static_cast<IrValue>(b.CreateAlignedLoad(type, p, align));
        Lanes r{raw};
        if (parts_ == 2) {
            r.re = b.CreateShuffleVector(raw, every(0, 2, lanes_));
            r.im = b.CreateShuffleVector(raw, every(1, 2, lanes_));
        }
        if (at_.stride == -1) {
            r.re = b.CreateShuffleVector(r.re, reversed());
            if (r.im) r.im = b.CreateShuffleVector(r.im, reversed());
        }
        r.re = finish(r.re);
        return r;
    }

    // Whole vectors and a shuffle; the last vector ends with the last element, so that nothing
    // behind it is read.
    IrValue load_strided(unsigned step) {
        llvm::Type* type = llvm::FixedVectorType::get(element_, lanes_);
        const llvm::Align align = alignment_of(buffer_.dtype);
        IrValue all = nullptr;
        unsigned loaded = 0;  // elements of `all`
        std::vector<int> source(lanes_ * step);
        for (unsigned k = 0; k < step; ++k) {
            const unsigned back = k + 1 == step ? step - 1 : 0;
            IrValue v = b.CreateAlignedLoad(
                type, pointer(static_cast<std::int64_t>(k * lanes_ - back)), align);
            for (unsigned i = 0; i + back < lanes_ + back; ++i)
                if (k * lanes_ + i >= back)
                    source[k * lanes_ + i - back] = static_cast<int>(loaded + i);
            all = all ? concat(all, v) : v;
            loaded += lanes_;
        }
        std::vector<int> pick;
        for (unsigned i = 0; i < lanes_; ++i) pick.push_back(source[i * step]);
        return b.CreateShuffleVector(all, pick);
    }
    IrValue concat(IrValue x, IrValue y) {
        const unsigned n = lanes_of(x), m = lanes_of(y);
        if (m < n) {
            std::vector<int> widen(n, -1);
            std::iota(widen.begin(), widen.begin() + m, 0);
            y = b.CreateShuffleVector(y, widen);
        }
        std::vector<int> both(n + m);
        std::iota(both.begin(), both.end(), 0);
        return b.CreateShuffleVector(x, y, both);
    }

    IrValue gather(unsigned part) {
        llvm::Type* type = llvm::FixedVectorType::get(element_, lanes_);
        return b.CreateMaskedGather(type, pointers(part), alignment_of(buffer_.dtype), lane_mask(),
                                    llvm::Constant::getNullValue(type));
    }
    void scatter(IrValue value, unsigned part) {
        b.CreateMaskedScatter(value, pointers(part), alignment_of(buffer_.dtype), lane_mask());
    }

    void store_contiguous(Lanes value, IrValue streaming) {
        if (at_.stride == -1) {
            value.re = b.CreateShuffleVector(value.re, reversed());
            if (value.im) value.im = b.CreateShuffleVector(value.im, reversed());
        }
        IrValue raw = value.re;
        if (parts_ == 2) {
            std::vector<int> pairs;
            for (unsigned i = 0; i < lanes_; ++i) {
                pairs.push_back(static_cast<int>(i));
                pairs.push_back(static_cast<int>(lanes_ + i));
            }
            raw = b.CreateShuffleVector(value.re, value.im, pairs);
        }
        IrValue p = pointer(first_element());
        const llvm::Align align = vector_alignment();
        if (mask_) {
            b.CreateMaskedStore(raw, p, align, memory_mask());
            return;
        }
        const bool whole =
            lanes_ * parts_ * static_cast<unsigned>(bytes(real_type(buffer_.dtype))) % 64 == 0;
        if (!streaming || !whole) {
            b.CreateAlignedStore(raw, p, align);
            return;
        }
        emit_if_else(
            b, streaming,
            [&] {
                llvm::StoreInst* s = b.CreateAlignedStore(raw, p, llvm::Align(64));
                s->setMetadata(llvm::LLVMContext::MD_nontemporal,
                               llvm::MDNode::get(b.getContext(),
                                                 llvm::ConstantAsMetadata::get(b.getInt32(1))));
            },
            [&] { b.CreateAlignedStore(raw, p, align); });
    }

    EmitContext& c_;
    llvm::IRBuilder<>& b;
    const BufferRef& buffer_;
    const Address& at_;
    IrValue mask_;
    unsigned lanes_;
    unsigned parts_;
    llvm::Type* element_;
};

// A loop of compare-and-exchange for types without an atomic addition.
void exchange_loop(EmitContext& c, DType t, IrValue pointer, IrValue value) {
    llvm::IRBuilder<>& b = c.b;
    llvm::Type* type = storage_type(b.getContext(), t);
    llvm::Function* function = b.GetInsertBlock()->getParent();
    auto* again = llvm::BasicBlock::Create(b.getContext(), "exchange", function);
    auto* done = llvm::BasicBlock::Create(b.getContext(), "exchanged", function);
    llvm::LoadInst* first = b.CreateAlignedLoad(type, pointer, alignment_of(t));
    first->setAtomic(llvm::AtomicOrdering::Monotonic);
    llvm::BasicBlock* before = b.GetInsertBlock();
    b.CreateBr(again);
    b.SetInsertPoint(again);
    llvm::PHINode* old = b.CreatePHI(type, 2);
    old->addIncoming(first, before);
    IrValue sum = to_storage(c, t, b.CreateFAdd(from_storage(c, t, old), value));
    llvm::AtomicCmpXchgInst* exchange =
        b.CreateAtomicCmpXchg(pointer, old, sum, alignment_of(t), llvm::AtomicOrdering::Monotonic,
                              llvm::AtomicOrdering::Monotonic);
    old->addIncoming(b.CreateExtractValue(exchange, 0), again);
    b.CreateCondBr(b.CreateExtractValue(exchange, 1), done, again);
    b.SetInsertPoint(done);
}

void atomic_add_one(EmitContext& c, DType t, IrValue pointer, IrValue value) {
    llvm::IRBuilder<>& b = c.b;
    if (is_reduced_float(t)) return exchange_loop(c, t, pointer, value);
    auto op = llvm::AtomicRMWInst::Add;
    if (is_float(t) || is_complex(t)) op = llvm::AtomicRMWInst::FAdd;
    if (t == DType::Bool) {
        op = llvm::AtomicRMWInst::Or;
        value = to_storage(c, t, value);
    }
    b.CreateAtomicRMW(op, pointer, value, alignment_of(t), llvm::AtomicOrdering::Monotonic);
}

}  // namespace

void make_streamable(llvm::IRBuilder<>& b, BufferRef& buffer) {
    IrValue low = b.CreateAnd(b.CreatePtrToInt(buffer.pointer, b.getInt64Ty()), 63);
    buffer.streamable = b.CreateICmpEQ(low, b.getInt64(0));
}

IrValue entry_alloca(llvm::IRBuilder<>& b, llvm::Type* type, const char* name) {
    llvm::BasicBlock& entry = b.GetInsertBlock()->getParent()->getEntryBlock();
    llvm::IRBuilder<> at(&entry, entry.begin());
    return at.CreateAlloca(type, nullptr, name);
}

Lanes emit_load(EmitContext& c, const BufferRef& buffer, const Address& at, IrValue mask,
                unsigned lanes) {
    const bool near = lanes <= 1 || at.stride == 0 || at.stride == 1;
    if (mask && !mask->getType()->isVectorTy() && near && buffer.readable >= std::max(lanes, 1u)) {
        Address there = at;
        there.base = c.b.CreateSelect(mask, at.base, c.b.getInt64(0));
        return Access(c, buffer, there, nullptr, lanes).load();
    }
    return Access(c, buffer, at, mask, lanes).load();
}

void emit_store(EmitContext& c, const BufferRef& buffer, const Address& at, Lanes value,
                IrValue mask, unsigned lanes, IrValue streaming) {
    Access(c, buffer, at, mask, lanes).store(splat(c.b, value, lanes), streaming);
}

void emit_atomic_add(EmitContext& c, const BufferRef& buffer, const Address& at, Lanes value,
                     IrValue mask, unsigned lanes) {
    llvm::IRBuilder<>& b = c.b;
    Access access(c, buffer, at, mask, lanes);
    const unsigned parts = value.im ? 2 : 1;
    if (lanes <= 1) {
        auto add = [&] {
            for (unsigned p = 0; p < parts; ++p)
                atomic_add_one(c, buffer.dtype, access.pointer(0, p), p ? value.im : value.re);
        };
        if (mask)
            emit_if(b, mask, add);
        else
            add();
        return;
    }
    // Lane after lane through the stack.
    value = splat(b, value, lanes);
    IrValue pointers = access.pointers(0);
    IrValue flags = b.CreateZExt(access.lane_mask(), with_lanes(b.getInt8Ty(), lanes));
    auto spill = [&](IrValue v) {
        if (v->getType()->isIntOrIntVectorTy(1))
            v = b.CreateZExt(v, with_lanes(b.getInt8Ty(), lanes));
        IrValue slot = entry_alloca(b, v->getType());
        b.CreateStore(v, slot);
        return slot;
    };
    IrValue pointer_slot = spill(pointers), flag_slot = spill(flags), re = spill(value.re);
    IrValue im = value.im ? spill(value.im) : nullptr;
    llvm::Type* part_type = value.re->getType()->getScalarType();
    emit_for(b, "lane", b.getInt64(0), b.getInt64(lanes), 1, [&](IrValue i) {
        IrValue flag = b.CreateLoad(b.getInt8Ty(), b.CreateGEP(b.getInt8Ty(), flag_slot, i));
        emit_if(b, b.CreateICmpNE(flag, b.getInt8(0)), [&] {
            IrValue p = b.CreateLoad(b.getPtrTy(), b.CreateGEP(b.getPtrTy(), pointer_slot, i));
            auto part = [&](IrValue slot) -> IrValue {
                llvm::Type* type = part_type->isIntegerTy(1) ? b.getInt8Ty() : part_type;
                IrValue v = b.CreateLoad(type, b.CreateGEP(type, slot, i));
                return part_type->isIntegerTy(1) ? b.CreateICmpNE(v, b.getInt8(0)) : v;
            };
            atomic_add_one(c, buffer.dtype, p, part(re));
            if (im)
                atomic_add_one(c, buffer.dtype, b.CreateConstGEP1_64(access.element(), p, 1),
                               part(im));
        });
    });
}

}  // namespace ingot::codegen
