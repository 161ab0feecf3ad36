// What generated contractions can do, for those who must choose before any code exists: the layout
// pass (how wide are panels), fusion (may this be a Contraction), the cost model (generated or the
// vendor's). Code generation starts from the same analysis, so the two cannot disagree.
//
// Cost: a few linear_in a contraction.
#pragma once
#include <optional>
#include <span>

#include "schedule/nest.h"

namespace ingot {

/// What a processor's core reaches, for the choice between generated and the vendor's code. As
/// measured on AMD's Zen 4, whose third cache feeds a core nearly as fast as its second and for
/// which the vendor's libraries are not made.
struct ContractionRates {
    double peak_gflops = 200;  // of fused multiply-adds in f32
    // Shares of the peak.
    double generated = 0.93;
    double generated_far = 0.93;  // a block of rows is read from the third cache
    double vendor = 0.5;
    double vendor_taps = 0.5;  // convolutions with a kernel of several taps
    double vendor_few = 0.5;   // and few channels
    double split = 1.3;        // by matrix units, before the operands are brought into order
};

/// The little that tile sizes depend on; made from the target's description by its owner.
struct VectorTarget {
    int vector_bits = 512;
    int tile_vectors = 24;  // sums that a register tile keeps
    std::int64_t l2_bytes = 1 << 20;
    int cores = 1;
    bool bf16_dot = false;      // instructions that multiply pairs of bf16 into f32
    bool matrix_units = false;  // units that multiply tiles of bf16, and f32 as three of them
    ContractionRates rates;
};

/// Rows and columns of the register tile: `columns` is the width of a panel of packed B.
struct TilePlan {
    int lanes = 16;
    int vectors = 2;
    int rows = 12;
    int columns() const { return lanes * vectors; }
};

/// Tiles of matrix units, and how many k they take at a time.
inline constexpr int kMatrixRows = 32, kMatrixColumns = 32, kMatrixK = 32;

/// The tile for products with `n` columns accumulated in `accumulate` (F32 or F64). Narrow `n`
/// gets a narrow panel, so that little is padded.
TilePlan plan_tile(Expr n, DType accumulate, const VectorTarget& target);
/// Width of the panels that a packed right side of `n` columns should have.
inline int panel_width(Expr n, DType accumulate, const VectorTarget& target) {
    return plan_tile(n, accumulate, target).columns();
}

/// How an operand lies, seen from the loops.
enum class OperandForm : std::uint8_t {
    Panels,    // B: packed
    Runs,      // evenly spaced along (the inner part of) k: read in place where consecutive, else
               // packed by transposition
    Columns,   // B: consecutive along n and evenly spaced along k
    Computed,  // anything else: computed element by element into scratch
};

struct OperandPlan {
    OperandForm form = OperandForm::Computed;
    std::int32_t buffer = -1;
    Expr offset;            // of the load
    InstId mask = kNone;    // of the load
    std::size_t inner = 0;  // Runs: the k loops from this one on are one run
    Expr run;               // Runs: the run's length
    Expr step = 1;          // Runs: distance of two k in a run
    Expr segments = 1;      // Runs: runs in all of k
    Expr stride;            // Columns: distance of two k
};

struct ContractionPlan {
    Expr batch, m, n, k;  // products of the loops' extents
    TilePlan tile;
    OperandPlan a, b;
    bool windows = false;  // an operand is an image read through overlapping windows
    bool pairs = false;    // bf16 operands, multiplied in pairs by instructions made for that
    // By matrix units: so many bf16 stand for an element, three for f32 and one where operands are
    // pairs of bf16. 0: by vectors.
    int parts = 0;
    bool by_matrix_units() const { return parts > 0; }
    bool split() const { return parts > 1; }
};

/// The analysis that code generation uses; nothing when the contraction cannot be generated (then
/// only the vendor can do it). Operands and results may be of any real floating type; the sum is
/// kept in f32 or f64.
std::optional<ContractionPlan> plan_contraction(const Contraction& contraction,
                                                std::span<const KernelBuffer> buffers,
                                                const VectorTarget& target);
std::optional<ContractionPlan> plan_contraction(const Kernel& kernel, const VectorTarget& target);

/// A convolution of an image with 3 x 3 taps in single steps: its results' sizes, the channels of a
/// point and of a result, and whether windows reach over the image's border.
struct FilterSizes {
    std::int64_t images = 0, height = 0, width = 0;
    std::int64_t channels = 0, columns = 0;
    bool border = true;
    bool gradient = false;  // of the weight, whose results are summed
};

/// Estimated time on one core in microseconds, generated and by the vendor, for fp32 with constant
/// sizes (symbolic ones count as 512).
struct ContractionCost {
    double generated = 0;
    double vendor = 0;
};
ContractionCost contraction_cost(const ContractionPlan& plan, const VectorTarget& target);

}  // namespace ingot
