// See winograd.h.
#include "codegen/contraction/winograd.h"

#include <algorithm>

#include "codegen/contraction/contraction.h"

namespace ingot::codegen {
namespace {

/// What a tile and a channel cost besides products, in products of one column with all planes'
/// elements of that tile and channel: as many as stores and loads of vectors take the time of.
/// Measured on Zen 4, which stores a vector in the time of two multiply-adds.
constexpr double kInput = 3;     // by tile and channel, for all columns
constexpr double kWeights = 2.5;  // tiles that one more panel of the right side is as dear as
constexpr double kOutput = 28;   // by tile and column, for all channels
constexpr double kRow = 0.8;     // what each register tile costs besides, in rows

/// Share of the taps that lie inside the image, which the plain products of small images leave out.
double inside(const ImageRows& image, const ContractionPlan& plan) {
    if (plan.a.mask == kNone || image.width >= 3 * plan.tile.rows) return 1;
    return 1 - 2.0 / 3 / static_cast<double>(image.height);
}

}  // namespace

std::optional<Winograd> choose_winograd(const Contraction& c, const ContractionPlan& plan,
                                        const TargetInfo& target) {
    constexpr std::int64_t kFewestChannels = 32;
    if (plan.by_matrix_units() || plan.pairs || c.accumulate != DType::F32) return std::nullopt;
    const auto image = find_image(c, plan, plan.tile.lanes);
    if (!image || image->taps_across != 3 || image->taps_down != 3 ||
        image->channels < kFewestChannels || !plan.n.is_constant() ||
        plan.n.constant() < kFewestChannels)
        return std::nullopt;
    const VectorTarget vectors = vector_target(target);
    const bool near = vectors.rates.generated_far >= vectors.rates.generated;
    const std::int64_t room = static_cast<std::int64_t>(target.l2_bytes) * (near ? 2 : 1);
    const std::int64_t columns = plan.tile.columns();
    const std::int64_t panels = (plan.n.constant() + columns - 1) / columns;
    const std::int64_t cores = std::max(1U, target.cores);
    const auto channels = static_cast<double>(image->channels);
    const auto width = static_cast<double>(columns);
    std::optional<Winograd> best;
    double best_cost = 0;
    for (std::int64_t tile_rows = 1; tile_rows <= image->images * ((image->height + 1) / 2);
         ++tile_rows) {
        Winograd w{*image, tile_rows, 1};
        const std::int64_t tiles = tile_rows * w.across();
        const std::int64_t count = (tiles + plan.tile.rows - 1) / plan.tile.rows;
        w.height = static_cast<int>((tiles + count - 1) / count);
        if (w.height < plan.tile.rows) w.height += w.height % 2;
        const std::int64_t bytes =
            kWinogradPlanes * 4 *
            (w.plane() + image->channels * columns + w.tiles() * columns);
        if (best && bytes > room) break;
        const std::int64_t items = w.blocks() * panels;
        const std::int64_t turns = (items + cores - 1) / cores;
        const std::int64_t blocks_of_core = (turns + panels - 1) / panels;
        const double rows = static_cast<double>(w.tiles()) * (1 + kRow / w.height);
        const double ordered = plan.b.form == OperandForm::Panels ? 0 : 9;
        const double cost =
            static_cast<double>(turns) * width *
                (16 * channels * (rows + kWeights + ordered) + static_cast<double>(tiles) * kOutput) +
            static_cast<double>(blocks_of_core * tiles) * channels * 16 * kInput;
        if (best && cost >= best_cost) continue;
        best_cost = cost;
        best = w;
    }
    const double plain = static_cast<double>(plan.m.constant() * panels) * width * 9 * channels *
                         inside(*image, plan) / static_cast<double>(cores) /
                         vectors.rates.generated;
    // What is near even is left to the plain products, which pass over less memory.
    if (!best || best_cost > 0.9 * plain) return std::nullopt;
    return best;
}

}  // namespace ingot::codegen
