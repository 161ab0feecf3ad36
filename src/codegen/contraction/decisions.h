// What emit_contraction decides before it writes any code: tile heights, blocks of rows, what is
// packed, where things lie in scratch. A few dozen integer expressions a contraction.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "codegen/contraction/image_rows.h"
#include "codegen/contraction/winograd.h"
#include "codegen/contraction/winograd_gradient.h"
#include "codegen/llvm/target.h"
#include "schedule/contraction_model.h"
#include "schedule/nest.h"

namespace ingot::codegen {

/// Where things lie in scratch, in bytes.
struct Scratch {
    Expr table, b_table, b_points, image, image_steps, zero, a_rows, a_packed, panel, b_part, room,
        tile_shapes, extremes, winograd_table, winograd_input, winograd_weights, winograd_sums,
        winograd_results, winograd_rough, total;
};

/// What is decided before any code is written.
struct Decisions {
    ContractionPlan plan;
    DType dtype = DType::F32;
    std::vector<Loop> rows;       // the loops over m, in the order of the rows
    bool rows_of_images = false;  // the same row of all images stands together there
    bool skips = false;           // tiles pass over taps that lie outside the image for all rows
    std::vector<bool> streamed;   // by buffer: results go past the caches
    std::vector<int> heights;     // of tiles: the full one, then what the rest is made of
    // Of all blocks but the last; where `tiles` is set, the most that one has but for a rest.
    std::int64_t block_rows = 0;
    // By vectors and where m is known: full tiles, divided as equally as can be. 0: elsewhere.
    std::int64_t tiles = 0;
    std::int64_t most_rows = 0;  // of any block, whole tiles
    // So many k (units) of a panel stay in the first cache while all rows of a block pass by; 0:
    // all k at once.
    std::int64_t block_k = 0;
    bool pad_rest = false;  // the last tile is a full one with rows of zeros: at most 2 % of work
                            // for one micro-kernel less to compile
    bool pack_a = false;
    // Packed panels of pairs are interleaved once for all tiles of a block, not by each of them.
    bool pairs_once = false;
    int group = 1;                // panels of a work item; on matrix units, else one
    bool matrix_runs = false;     // on matrix units: A's runs are taken where they lie
    bool a_side_by_side = false;  // there, turned: rows of A that are neighbours lie side by side
    bool b_by_rows = false;       // there, split: columns of B are taken where they lie, k by k
    // There, split: columns of a panel lie side by side, rows of it anywhere (an image's points).
    bool b_by_points = false;
    bool b_in_place = false;         // B's columns are read where they lie, but for the last panel
    std::optional<ImageRows> image;  // there, split: A's points serve all taps
    std::optional<Winograd> winograd;          // by vectors: four results at a time
    std::optional<WinogradGradient> gradient;  // the same of weights' gradients
    Scratch scratch;
    Expr groups, blocks;
    /// The rows of all batches lie alike, this many bytes apart: one table serves a block of rows
    /// in every batch (the groups of a convolution).
    std::optional<Expr> batch_shift;
    /// k as tiles of matrix units hold it, and the bytes of an element there.
    Expr matrix_k() const { return Expr(kMatrixK) * ceil_div(plan.k, Expr(kMatrixK)); }
    std::int64_t matrix_bytes() const { return 2 * std::int64_t{plan.parts}; }
    /// Whether B is split where it lies, without a panel of all k in order.
    bool b_as_it_lies() const { return b_by_rows || b_by_points; }
    /// Lengths along k as the micro-kernels count them: pairs of bf16 are one.
    Expr units(Expr along_k) const { return plan.pairs ? floor_div(along_k, 2) : along_k; }
};

/// Throws NotSupported for what plan_contraction refuses.
Decisions decide(const Kernel& kernel, const TargetInfo& target);

/// A constant's value, or `otherwise` for a symbolic size.
inline std::int64_t or_default(Expr e, std::int64_t otherwise) {
    return e.is_constant() ? e.constant() : otherwise;
}

}  // namespace ingot::codegen
