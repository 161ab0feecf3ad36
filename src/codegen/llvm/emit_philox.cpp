// See emit_philox.h.
#include "codegen/llvm/emit_philox.h"

#include <array>

namespace ingot::codegen {
namespace {

class Philox {
  public:
    Philox(llvm::IRBuilder<>& builder, unsigned lanes, PhiloxLayout layout)
        : b(builder),
          lanes_(lanes),
          layout_(layout),
          i32_(with_lanes(b.getInt32Ty(), lanes)),
          i64_(with_lanes(b.getInt64Ty(), lanes)),
          // Quotients of 32 bits cost a GPU a fraction of those of 64.
          wide_(layout.small ? i32_ : i64_) {}

    /// Which of a thread's numbers the place is given, and the thread.
    struct Turn {
        IrValue thread, drawn;
    };
    Turn turn_of(IrValue place) {
        IrValue p = b.CreateZExtOrTrunc(place, wide_);
        const std::int64_t width = layout_.width;
        IrValue unit = width == 1 ? p : b.CreateLShr(p, number(log2(width)));
        IrValue turn = b.CreateUDiv(unit, number(layout_.threads));
        IrValue thread = b.CreateSub(unit, b.CreateMul(turn, number(layout_.threads)));
        if (width == 1) return {thread, turn};
        IrValue drawn = b.CreateMul(turn, number(width == 2 ? 4 : width));
        return {thread, b.CreateAdd(drawn, b.CreateAnd(p, number(width - 1)))};
    }

    /// The four numbers (i32) of the block of which `drawn` is one.
    std::array<IrValue, 4> block(const Turn& t, IrValue seed, IrValue offset) {
        IrValue of_thread = b.CreateZExt(b.CreateLShr(t.drawn, number(2)), i64_);
        IrValue at = b.CreateAdd(b.CreateLShr(offset, wide(2)), of_thread);
        IrValue thread = b.CreateZExt(t.thread, i64_);
        std::array<IrValue, 4> c{low(at), high(at), low(thread), high(thread)};
        std::array<IrValue, 2> key{low(seed), high(seed)};
        for (int round = 0; round < kPhiloxRounds; ++round) {
            IrValue x = product(kPhiloxMultipliers[0], c[0]);
            IrValue y = product(kPhiloxMultipliers[1], c[2]);
            c = {b.CreateXor(b.CreateXor(high(y), c[1]), key[0]), low(y),
                 b.CreateXor(b.CreateXor(high(x), c[3]), key[1]), low(x)};
            for (std::size_t i = 0; i < 2; ++i)
                key[i] = b.CreateAdd(key[i], llvm::ConstantInt::get(i32_, kPhiloxKeySteps[i]));
        }
        return c;
    }

    /// The one of the four that is number `drawn`.
    IrValue one_of(const std::array<IrValue, 4>& four, IrValue drawn) {
        IrValue odd = b.CreateICmpNE(b.CreateAnd(drawn, number(1)), number(0));
        IrValue second = b.CreateICmpNE(b.CreateAnd(drawn, number(2)), number(0));
        return b.CreateZExt(b.CreateSelect(second, b.CreateSelect(odd, four[3], four[2]),
                                           b.CreateSelect(odd, four[1], four[0])),
                            i64_);
    }

  private:
    static std::int64_t log2(std::int64_t width) { return width == 8 ? 3 : width == 4 ? 2 : 1; }
    IrValue number(std::int64_t v) {
        return llvm::ConstantInt::get(wide_, static_cast<std::uint64_t>(v));
    }
    IrValue wide(std::uint64_t v) { return llvm::ConstantInt::get(i64_, v); }
    IrValue low(IrValue v) { return b.CreateTrunc(v, i32_); }
    IrValue high(IrValue v) { return b.CreateTrunc(b.CreateLShr(v, wide(32)), i32_); }
    IrValue product(std::uint32_t factor, IrValue x) {
        return b.CreateMul(b.CreateZExt(x, i64_), wide(factor));
    }

    llvm::IRBuilder<>& b;
    unsigned lanes_;
    PhiloxLayout layout_;
    llvm::Type *i32_, *i64_, *wide_;
};

}  // namespace

IrValue emit_philox(llvm::IRBuilder<>& b, IrValue place, IrValue seed, IrValue offset,
                    PhiloxLayout layout) {
    Philox p(b, lanes_of(place), layout);
    const Philox::Turn t = p.turn_of(place);
    return p.one_of(p.block(t, seed, offset), t.drawn);
}

IrValue emit_philox_neighbours(llvm::IRBuilder<>& b, IrValue first, unsigned lanes, IrValue seed,
                               IrValue offset, PhiloxLayout layout) {
    IrValue all = llvm::PoisonValue::get(with_lanes(b.getInt64Ty(), lanes));
    for (unsigned done = 0; done < lanes; done += 4) {
        Philox p(b, 0, layout);
        const auto four = p.block(p.turn_of(b.CreateAdd(first, b.getInt64(done))), seed, offset);
        for (unsigned i = 0; i < 4; ++i)
            all = b.CreateInsertElement(all, b.CreateZExt(four[i], b.getInt64Ty()),
                                        std::uint64_t{done + i});
    }
    return all;
}

}  // namespace ingot::codegen
