// Nests that carry elements from one order in memory to another, on a GPU (schedule/transposes.h):
// a block reads a tile of each crossing operand as it lies in memory, side by side along the one
// loop, into shared memory, and computes and writes the tile's points side by side along the other
// one. Rows of a tile are padded so that neither way meets a bank twice. Tiles that stick out read
// the last elements again and write nothing for them.
//
// Used by emit_nvptx alone. Cost: as many accesses a thread as its tile has (kThreads threads).
#pragma once
#include <llvm/IR/Module.h>

#include <optional>
#include <span>
#include <vector>

#include "codegen/llvm/emit_body.h"
#include "schedule/transposes.h"

namespace ingot::codegen {

struct GpuTile {
    sched::Transpose transpose;
    std::int64_t along = 32, across = 32;  // points of a tile
    unsigned lanes_read = 1, lanes_written = 1;
    static constexpr unsigned kThreads = 256;
};

/// How a GPU's blocks take `nest`; nothing where it crosses no orders.
std::optional<GpuTile> tile_of(const Kernel& kernel, const Nest& nest, IndexEmitter& index);

/// The nest's tiles.
Expr tiles_of(const Nest& nest, const GpuTile& tile);

class TileEmitter {
  public:
    TileEmitter(EmitContext& c, IndexEmitter& index, llvm::Module& module,
                std::span<const BufferRef> buffers, const Nest& nest, const GpuTile& tile,
                IrValue thread);
    /// All of tile `number` (i64), by all threads of a block.
    void run(IrValue number);

  private:
    /// A point of the tile, or `lanes` of them along a loop; lane 0's.
    struct Place {
        IrValue along, across;
    };
    void read(IrValue first_along, IrValue first_across);
    void write(IrValue first_along, IrValue first_across);
    IrValue clamped(IrValue at, const Loop& loop, unsigned lanes);
    void enter(Place at, const Loop& wide, unsigned lanes);
    void leave(unsigned lanes);
    IrValue from_tile(std::size_t slot, IrValue along, IrValue across);
    const Loop& along() const { return nest_.loops[tile_.transpose.along]; }
    const Loop& across() const { return nest_.loops[tile_.transpose.across]; }
    void barrier();
    llvm::ConstantInt* number(std::int64_t n) { return b_.getInt64(static_cast<std::uint64_t>(n)); }

    EmitContext& c_;
    llvm::IRBuilder<>& b_;
    IndexEmitter& index_;
    llvm::Module& module_;
    std::span<const BufferRef> buffers_;
    std::vector<BufferRef> raw_;  // the same, numbers of 16 bits as such
    const Nest& nest_;
    const GpuTile& tile_;
    IrValue thread_;
    std::vector<llvm::GlobalVariable*> slots_;  // by crossing load
    std::vector<llvm::Type*> types_;            // of their elements
};

}  // namespace ingot::codegen
