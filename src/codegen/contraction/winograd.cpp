// See winograd.h.
#include "codegen/contraction/winograd.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "codegen/contraction/contraction.h"
#include "codegen/contraction/winograd_gradient.h"

namespace ingot::codegen {
namespace {

/// What a tile and a channel cost besides products, in products of one column with all planes'
/// elements of that tile and channel: as many as stores and loads of vectors take the time of.
/// Measured on Zen 4, which stores a vector in the time of two multiply-adds.
constexpr double kInput = 8;     // by tile and channel, for all columns
constexpr double kWeights = 5;   // tiles that one more panel of the right side is as dear as
constexpr double kOrdering = 9;  // and to bring it into a panel first
constexpr double kOutput = 28;   // by tile and column, for all channels
constexpr double kRow = 0.8;     // what each register tile costs besides, in rows

/// Share of the taps that lie inside the image, which the plain products of small images leave out.
double inside(const FilterSizes& sizes, int rows) {
    if (!sizes.border || sizes.width >= 3 * std::int64_t{rows}) return 1;
    return 1 - 2.0 / 3 / static_cast<double>(sizes.height);
}

/// The division that takes least, where that is less than plain products take. `in_order`: taps are
/// read where they lie.
std::optional<Winograd> divide(const FilterSizes& sizes, const TilePlan& tile, bool in_order,
                               const TargetInfo& target) {
    constexpr std::int64_t kFewest = 32;
    if (sizes.channels < kFewest || sizes.columns < kFewest || sizes.channels % tile.lanes != 0 ||
        tile.vectors > 2)
        return std::nullopt;
    const VectorTarget vectors = vector_target(target);
    const bool near = vectors.rates.generated_far >= vectors.rates.generated;
    const std::int64_t room = static_cast<std::int64_t>(target.l2_bytes) * (near ? 4 : 1);
    const std::int64_t columns = tile.columns();
    const std::int64_t panels = (sizes.columns + columns - 1) / columns;
    const std::int64_t cores = std::max(1U, target.cores);
    const auto channels = static_cast<double>(sizes.channels);
    const auto width = static_cast<double>(columns);
    std::optional<Winograd> best;
    double best_cost = 0;
    const ImageRows image{.width = sizes.width,
                          .height = sizes.height,
                          .images = sizes.images,
                          .taps_across = 3,
                          .taps_down = 3,
                          .channels = sizes.channels};
    for (std::int64_t tile_rows = 1; tile_rows <= sizes.images * ((sizes.height + 1) / 2);
         ++tile_rows) {
        Winograd w{image, tile_rows, 1};
        const std::int64_t tiles = tile_rows * w.across();
        const std::int64_t count = (tiles + tile.rows - 1) / tile.rows;
        w.height = static_cast<int>((tiles + count - 1) / count);
        if (w.height < tile.rows) w.height += w.height % 2;
        const std::int64_t bytes =
            kWinogradPlanes * 4 * (w.plane() + w.tap_plane(columns) + w.sum_plane(columns));
        if (best && bytes > room) break;
        const std::int64_t items = w.blocks() * panels;
        const std::int64_t turns = (items + cores - 1) / cores;
        const std::int64_t blocks_of_core = (turns + panels - 1) / panels;
        const double rows = static_cast<double>(w.tiles()) * (1 + kRow / w.height);
        const double of_panel = 16 * channels * (rows + kWeights + (in_order ? 0 : kOrdering)) +
                                static_cast<double>(tiles) * kOutput;
        const double cost = static_cast<double>(turns) * width * of_panel +
                            static_cast<double>(blocks_of_core * tiles) * channels * 16 * kInput;
        // Small blocks stay in nearer caches: larger ones must be worth it.
        if (best && cost > 0.98 * best_cost) continue;
        best_cost = cost;
        best = w;
    }
    const double plain = static_cast<double>(sizes.images * sizes.height * sizes.width * panels) *
                         width * 9 * channels * inside(sizes, tile.rows) /
                         static_cast<double>(cores) / vectors.rates.generated;
    // What is near even is left to plain products, which pass over less memory.
    if (!best || best_cost > 0.9 * plain) return std::nullopt;
    return best;
}

/// Where B's elements are affine in taps, channels and columns.
std::optional<TapsInPlace> find_taps(const Contraction& c, const ContractionPlan& plan) {
    const Inst& load = c.b_insts.back();
    const bool bound =
        std::ranges::any_of(c.b_insts, [](const Inst& i) { return i.kind == InstKind::Bind; });
    if (plan.b.form == OperandForm::Panels || load.kind != InstKind::Load || load.mask != kNone ||
        bound || load.dtype != DType::F32 || c.k.size() != 3 || c.n.size() != 1 ||
        plan.n.constant() % plan.tile.columns() != 0)
        return std::nullopt;
    std::vector<std::int64_t> strides;
    for (const Expr var : {c.k[0].var, c.k[1].var, c.k[2].var, c.n[0].var}) {
        const auto linear = linear_in(load.offset, var);
        if (!linear || !linear->stride.is_constant()) return std::nullopt;
        strides.push_back(linear->stride.constant());
    }
    const TapsInPlace taps{.channel = strides[2],
                           .tap = strides[1],
                           .interleaved = strides[3] == kWinogradTaps && std::abs(strides[1]) == 1};
    if (strides[0] != 3 * strides[1] || strides[3] != taps.column()) return std::nullopt;
    return taps;
}

}  // namespace

std::optional<Winograd> choose_winograd(const Contraction& c, const ContractionPlan& plan,
                                        const TargetInfo& target) {
    // Beside matrix units neither: `filters` says so to whoever lays operands out for it.
    if (vector_target(target).matrix_units || plan.pairs || c.accumulate != DType::F32 ||
        !plan.n.is_constant())
        return std::nullopt;
    if (c.k.size() != 3 || !c.k[2].extent.is_constant() || plan.a.inner > 2) return std::nullopt;
    // Without a border the taps beside one another may be one run with the channels.
    ContractionPlan by_points = plan;
    by_points.a.inner = 2;
    by_points.a.run = c.k[2].extent;
    const auto image = find_image(c, by_points, plan.tile.lanes);
    if (!image || image->taps_across != 3 || image->taps_down != 3) return std::nullopt;
    const FilterSizes sizes{image->images,   image->height,     image->width,
                            image->channels, plan.n.constant(), plan.a.mask != kNone};
    const auto taps = find_taps(c, plan);
    auto found = divide(sizes, plan.tile, taps || plan.b.form == OperandForm::Panels, target);
    if (found) found->taps = taps;
    return found;
}

bool filters(const FilterSizes& sizes, const TargetInfo& target) {
    if (sizes.gradient) return filters_gradient(sizes, target);
    const VectorTarget vectors = vector_target(target);
    const TilePlan tile = plan_tile(Expr(sizes.columns), DType::F32, vectors);
    return !vectors.matrix_units && divide(sizes, tile, true, target).has_value();
}

bool filters(const Kernel& kernel, const TargetInfo& target) {
    const auto plan = plan_contraction(kernel, vector_target(target));
    return plan && (choose_winograd(*kernel.contraction, *plan, target) ||
                    choose_winograd_gradient(*kernel.contraction, *plan, target));
}

}  // namespace ingot::codegen
