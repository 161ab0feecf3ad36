// The body of a loop: a phase's instructions at one point, or at one point a lane. Nothing here
// knows loops: the caller binds the index symbols in the IndexEmitter, says which one runs along
// the vector, and asks for instructions one after another. Loop nests use it, and contractions for
// their epilogues and prologues.
#pragma once
#include <functional>
#include <span>
#include <vector>

#include "codegen/llvm/emit_index.h"
#include "codegen/llvm/emit_memory.h"
#include "codegen/llvm/emit_types.h"
#include "schedule/nest.h"

namespace ingot::codegen {

struct BodyOptions {
    bool round_intermediates = true;
};

class BodyEmitter {
  public:
    BodyEmitter(EmitContext& c, IndexEmitter& index, std::span<const BufferRef> buffers,
                BodyOptions options)
        : c_(c), index_(index), buffers_(buffers), options_(options) {}

    void set_buffers(std::span<const BufferRef> buffers) { buffers_ = buffers; }
    /// Starts with other instructions; values of earlier ones are gone.
    void begin(std::span<const Inst> insts);

    /// Lanes in which memory may be touched and errors count: a vector of i1 as wide as the
    /// IndexEmitter's lanes, or null for all.
    void set_active(IrValue mask) { active_ = mask; }

    /// Values of Accumulator and Reduced instructions.
    std::function<Lanes(const Inst&)> accumulator;
    std::function<Lanes(const Inst&)> reduced;

    /// Appends instruction `id`; those it uses must have been emitted where they dominate it.
    /// May add basic blocks.
    void emit(InstId id);
    /// Gives instruction `id` a value made elsewhere; emit(id) does nothing then.
    void preset(InstId id, Lanes value) {
        values_[id] = value;
        preset_[id] = true;
    }
    void emit_all() {
        for (InstId i = 0; i < insts_.size(); ++i) emit(i);
    }
    /// The value of an emitted instruction: a scalar where it is the same in all lanes.
    Lanes value(InstId id) const { return values_[id]; }
    /// The value of Load `inst`, whose mask has been emitted.
    Lanes load(const Inst& inst);
    void store(const Store& store);

  private:
    bool zero_elsewhere(const BufferRef& buffer, const Inst& inst) const;
    IrValue load_pairs(const BufferRef& buffer, const Address& at, IrValue mask);
    Address address(const BufferRef& buffer, Expr offset, bool& varying);
    Address interleaved(Address a);
    IrValue aligned_stream(const BufferRef& buffer, Expr offset) const;
    IrValue access_mask(InstId mask, bool varying);
    Lanes prim(const Inst& inst);
    Lanes philox(const Inst& inst);
    Lanes number_of(const Inst& inst);
    void bind(const Inst& inst);

    EmitContext& c_;
    IndexEmitter& index_;
    std::span<const BufferRef> buffers_;
    BodyOptions options_;
    std::span<const Inst> insts_;
    std::vector<Lanes> values_;
    std::vector<bool> preset_;
    IrValue active_ = nullptr;
};

}  // namespace ingot::codegen
