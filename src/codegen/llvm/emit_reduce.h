// Accumulators of reductions: what they start with, how an element is combined in, how lanes are
// combined in the end. Long sums keep a second level of partial sums, of f64 for those of f32, so
// that their errors are those of a block however long they are; eager's cascade has more levels.
// Used by the loop nests.
#pragma once
#include <optional>
#include <vector>

#include "codegen/llvm/emit_types.h"
#include "schedule/nest.h"

namespace ingot::codegen {

/// What a reduction has gathered: a value, and for arg reductions the index it was found at.
struct Partial {
    Lanes value;
    IrValue index = nullptr;
};

/// Whether the indices of an arg reduction of `phase` are known to fit into 32 bits, of which a
/// register holds twice as many.
bool has_short_indices(const Phase& phase, const Reduction& r);
/// The result for no elements.
Partial identity(EmitContext& c, const Reduction& r, unsigned lanes, bool short_indices = false);
/// `next` combined into `sofar`; commutative and associative up to rounding.
Partial combine(EmitContext& c, const Reduction& r, const Partial& sofar, const Partial& next);
/// Whether rounding errors add up, so that a second level of partial sums helps.
bool is_rounded_sum(const Reduction& r);
/// The second level of `r`: of f64 for f32, of the same type where there is no wider one.
Reduction second_level(Reduction r);
/// All lanes combined: a scalar.
Partial across_lanes(EmitContext& c, const Reduction& r, Partial p);

/// The accumulators of a phase in the function's frame; LLVM makes registers of them.
class Accumulators {
  public:
    Accumulators(EmitContext& c, const Phase& phase, unsigned lanes, bool two_levels);
    unsigned lanes() const { return lanes_; }
    /// Combines one point (a lane) into reduction `r`; where `active` fails nothing changes.
    void add(std::size_t r, Partial next, IrValue active);
    /// Moves first-level sums to the second level; nothing unless two_levels.
    void flush();
    /// What reduction `r` has gathered, still in lanes; indices have 64 bits.
    Partial get(std::size_t r);

  private:
    struct Slot {
        IrValue re = nullptr, im = nullptr, index = nullptr;
        llvm::Type* type = nullptr;
        llvm::Type* index_type = nullptr;
    };
    Slot make(const Reduction& r);
    Partial converted(const Partial& p, DType from, DType to);
    Partial load(const Slot& s);
    void store(const Slot& s, const Partial& p);
    bool has_second(const Reduction& r) const;

    EmitContext& c_;
    const Phase& phase_;
    std::span<const Reduction> reductions_;
    unsigned lanes_;
    bool two_levels_;
    std::vector<Slot> first_, second_;
};

}  // namespace ingot::codegen
