// Reductions over the threads that share a point of a GPU's nest: a butterfly of shuffles within
// each warp, then the warps' results through shared memory. Used by emit_nvptx alone; linear in the
// number of reductions.
#pragma once
#include <llvm/IR/Module.h>

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
    /// a phase.
    void run(const Phase& phase, std::vector<Partial>& partials);

  private:
    Partial butterfly(const Reduction& r, Partial p);
    std::pair<llvm::GlobalVariable*, llvm::Type*> slot(IrValue v);
    IrValue shuffle(IrValue v, unsigned distance);
    llvm::ConstantInt* number(std::uint64_t n) { return b_.getInt64(n); }

    EmitContext& c_;
    llvm::IRBuilder<>& b_;
    llvm::Module& module_;
    const GpuMapping& map_;
    IrValue thread_;
};

}  // namespace ingot::codegen
