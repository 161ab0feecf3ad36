// Reductions over the threads that share a point of a GPU's nest: a butterfly of shuffles within
// each warp, then the warps' results through shared memory. Used by emit_nvptx alone; linear in the
// number of reductions.
#pragma once
#include <llvm/IR/Module.h>

#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "codegen/llvm/emit_reduce.h"
#include "codegen/llvm/gpu_mapping.h"

namespace ingot::codegen {

/// `f` of each part of a partial result.
template <class F>
Partial map_parts(const Partial& p, const F& f) {
    Partial out;
    out.value.re = f(p.value.re);
    if (p.value.im) out.value.im = f(p.value.im);
    if (p.index) out.index = f(p.index);
    return out;
}

/// All threads of a point have come here, and see what the others have stored.
void emit_group_barrier(llvm::IRBuilder<>& b, const GpuMapping& map);

class GroupReduction {
  public:
    /// thread: the thread's number in its block.
    GroupReduction(EmitContext& c, llvm::Module& module, const GpuMapping& map, IrValue thread)
        : c_(c), b_(c.b), module_(module), map_(map), thread_(thread) {}

    /// Every thread's partial results combined, known to every thread, with one barrier for all of
    /// a phase. `turn` (null, or an i64 that is 0 and 1 by turns): the next exchange may begin
    /// while threads still read this one's.
    void run(const Phase& phase, std::vector<Partial>& partials, IrValue turn = nullptr);

    /// The same of warps that share points of a thread each (map.parts), with two barriers.
    void run_parts(const Phase& phase, std::vector<Partial>& partials);

  private:
    /// Among `width` neighbouring lanes, a power of two.
    Partial butterfly(const Reduction& r, Partial p, unsigned width = kWarp);
    // Where warps leave what they have found. Up to four fp32 numbers lie together, and are stored
    // and loaded at once.
    struct Slots {
        std::vector<std::pair<llvm::GlobalVariable*, llvm::Type*>> variables;
        bool together = false;
    };
    Slots place(const std::vector<IrValue>& parts, unsigned count);
    void store(const Slots& slots, const std::vector<IrValue>& parts, IrValue at);
    /// What lies there: partial results of the same kinds as `like`.
    std::vector<Partial> load(const Slots& slots, const std::vector<Partial>& like, IrValue at);
    static std::vector<IrValue> numbers_of(const std::vector<Partial>& partials);
    /// So many partial results combined, one after another.
    std::vector<Partial> total_of(const Phase& phase, unsigned count,
                                  const std::function<std::vector<Partial>(unsigned)>& nth);
    llvm::GlobalVariable* shared_array(llvm::Type* type, unsigned count);
    IrValue shuffle(IrValue v, unsigned distance);
    llvm::ConstantInt* number(std::uint64_t n) { return b_.getInt64(n); }

    EmitContext& c_;
    llvm::IRBuilder<>& b_;
    llvm::Module& module_;
    const GpuMapping& map_;
    IrValue thread_;
};

}  // namespace ingot::codegen
