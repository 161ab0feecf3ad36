// How a loop nest is laid over a GPU's threads: which threads share an outer point, how many
// neighbouring elements each of them takes at once. Decided from the nest alone, before any code.
//
// - Points: a thread for each `lanes` neighbouring outer points; phases have no loops, or some that
//   a thread walks alone: short ones, and those across columns, where neighbouring outer points are
//   neighbours in memory. `parts`: warps of a block walk parts of few columns.
// - Runs: rows, of which the same threads take several one after another.
// - Tiles: a block for each, through shared memory (emit_tiles.h).
// - Rows: some lanes of a warp, a warp or a block for each outer point; its threads take the
// elements of the phases'
//   loops side by side, `lanes` at a time. `single`: each thread has at most `each` such pieces,
//   which then stay in registers from phase to phase.
#pragma once
#include "codegen/gpu_forms.h"
#include "codegen/llvm/emit_index.h"
#include "codegen/llvm/emit_tiles.h"
#include "schedule/nest.h"

namespace ingot::codegen {

struct GpuMapping {
    bool rows = false;
    unsigned lanes = 1;  // elements a thread takes at once; 16 bytes of the narrowest type at most
    unsigned group = 1;  // threads that share an outer point: 1, a part of a warp (a power of two),
                         // a warp or the whole block
    unsigned threads = 256;  // of a block
    unsigned copies = 1;     // points of a thread, a block's width apart: all are loaded before any
                             // is stored, so that more of the memory's time is used
    bool single = false;
    unsigned each = 1;        // single: pieces of a thread, the group's width apart
    std::int64_t pieces = 0;  // single: of a row; threads beyond it are idle
    bool as_stored = false;   // single: pieces stay as they lie in memory, where that is narrower
    std::int64_t held = 0;    // single: bytes that a thread keeps of its rows
    unsigned resident = 0;    // blocks that a multiprocessor is to hold at once; 0: as it comes
    bool ragged =
        false;           // points: fewer than `lanes` remain at the end, which are taken one by one
    unsigned parts = 1;  // points: warps that share theirs, each with a part of the phase's loop
    std::optional<GpuTile> tile;
    unsigned groups() const { return threads / group / parts; }  // of a block
};

constexpr unsigned kWarp = 32;
constexpr std::int64_t kRowBytes = 128;  // of rows that a thread keeps in registers, but long ones

/// The product of the loops' extents.
Expr extent_of(const std::vector<Loop>& loops);

/// `form` instead of what would be chosen, as far as the nest allows it.
GpuMapping map_to_gpu(const Kernel& kernel, const Nest& nest, IndexEmitter& index,
                      const NestForm& form = {});

}  // namespace ingot::codegen
