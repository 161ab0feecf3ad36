// See winograd_gradient.h.
#include "codegen/contraction/winograd_gradient.h"

#include <algorithm>
#include <vector>

#include "codegen/contraction/contraction.h"
#include "codegen/contraction/image_rows.h"

namespace ingot::codegen {
namespace {

constexpr std::int64_t kFewest = 32;  // channels
/// Tiles of a block, about: sums over longer chains would lose more bits than the vendor's
/// libraries, which add up blocks too; with fewer the sums are loaded and stored too often.
constexpr std::int64_t kTiles = 64;

// In the time of one multiply-add of vectors. Measured on Zen 4, which stores a vector in the time
// of two.
constexpr double kForm = 3;     // a vector of one plane of a tile's points or results
constexpr double kAdding = 2;   // a vector of sums, by block
constexpr double kFinish = 60;  // a vector of sums of all planes, once

std::vector<std::int64_t> divisors(std::int64_t n, std::int64_t unit) {
    std::vector<std::int64_t> found;
    for (std::int64_t d = unit; d <= n; d += unit)
        if (n % d == 0) found.push_back(d);
    return found;
}

/// The division that takes least, where that is less than plain products take. Steps of points stay
/// to be found.
std::optional<WinogradGradient> divide(const FilterSizes& sizes, const TilePlan& tile,
                                       const TargetInfo& target) {
    WinogradGradient w{.images = sizes.images,
                       .height = sizes.height,
                       .width = sizes.width,
                       .channels = sizes.channels,
                       .results = sizes.columns,
                       .height_of_tile = tile.rows >= 8 ? 8 : 4};
    if (w.channels < kFewest || w.results < kFewest || w.channels % tile.columns() != 0 ||
        w.results % tile.lanes != 0 || tile.lanes % w.height_of_tile != 0 || tile.vectors > 2 ||
        w.images < 1 || w.height < 1 || w.width < 1)
        return std::nullopt;
    const std::int64_t rows = w.all_tile_rows();
    const std::int64_t most = std::clamp<std::int64_t>(kTiles / w.across(), 1, rows);
    const std::int64_t count = (rows + most - 1) / most;
    w.tile_rows = (rows + count - 1) / count;

    const VectorTarget vectors = vector_target(target);
    const std::int64_t cores = std::max(1U, target.cores);
    const std::int64_t room = static_cast<std::int64_t>(target.l2_bytes);
    const auto all_tiles = static_cast<double>(rows * w.across());
    const auto lanes = static_cast<double>(tile.lanes);
    std::optional<WinogradGradient> best;
    double best_cost = 0;
    for (const std::int64_t of_points : divisors(w.channels, tile.columns()))
        for (const std::int64_t of_results : divisors(w.results, tile.lanes)) {
            w.item_channels = of_points;
            w.item_results = of_results;
            if (best && w.floats() * 4 > room) break;
            const std::int64_t items = w.result_groups() * w.channel_groups();
            const std::int64_t turns = (items + cores - 1) / cores;
            const std::int64_t points_formed =
                w.keeps_points() ? (turns + w.result_groups() - 1) / w.result_groups() : turns;
            const auto c = static_cast<double>(of_points), k = static_cast<double>(of_results);
            const auto t = static_cast<double>(turns);
            const double formed =
                kForm * (static_cast<double>(points_formed) * c + t * k) * all_tiles;
            const double sums = c * k * (all_tiles + kAdding * static_cast<double>(w.blocks()));
            const double cost = (16 * (formed + t * sums) + t * kFinish * c * k) / lanes;
            if (best && cost >= best_cost) continue;
            best_cost = cost;
            best = w;
        }
    const double plain = static_cast<double>(w.images * w.height * w.width) *
                         static_cast<double>(w.channels * w.results * 9) / lanes /
                         static_cast<double>(cores) / vectors.rates.generated;
    if (!best || best_cost > 0.9 * plain) return std::nullopt;
    return best;
}

std::optional<std::int64_t> step_along(Expr e, Expr var) {
    const auto linear = linear_in(e, var);
    if (!linear || !linear->stride.is_constant()) return std::nullopt;
    return linear->stride.constant();
}

/// Whether the operand is memory as it is, indexed by nothing but the loops.
bool is_plain(const std::vector<Inst>& insts, const OperandPlan& plan) {
    return plan.form == OperandForm::Runs && plan.mask == kNone && insts.size() == 1 &&
           insts.back().kind == InstKind::Load && insts.back().dtype == DType::F32;
}

/// Whether the columns are (tap down, tap across, channel): taps move by the points that rows of
/// results and results do, channels are neighbours. The last two loops may be one.
bool are_taps(const Contraction& c, Expr offset, std::int64_t down, std::int64_t across) {
    if (c.n.size() < 2 || c.n.size() > 3 || !c.n[0].extent.is(3) ||
        step_along(offset, c.n[0].var) != down || step_along(offset, c.n.back().var) != 1)
        return false;
    const std::int64_t last = c.n.back().extent.constant();
    if (c.n.size() == 2) return last % 3 == 0 && last / 3 == across;
    return c.n[1].extent.is(3) && step_along(offset, c.n[1].var) == across;
}

}  // namespace

std::optional<WinogradGradient> choose_winograd_gradient(const Contraction& c,
                                                         const ContractionPlan& plan,
                                                         const TargetInfo& target) {
    // Beside matrix units neither: `filters` says so to whoever lays operands out for it.
    if (vector_target(target).matrix_units || plan.pairs || c.accumulate != DType::F32 ||
        !c.batch.empty() || c.m.size() != 1 || c.k.size() < 2 || c.k.size() > 3 ||
        !constant_extents(c.m) || !constant_extents(c.n) || !constant_extents(c.k) ||
        !is_plain(c.a_insts, plan.a) || !is_plain(c.b_insts, plan.b))
        return std::nullopt;
    const Loop &across = c.k.back(), &down = c.k[c.k.size() - 2];
    const auto point = step_along(plan.b.offset, across.var);
    const auto row = step_along(plan.b.offset, down.var);
    const auto result = step_along(plan.a.offset, across.var);
    if (!point || !row || !result || !step_along(plan.a.offset, down.var) ||
        step_along(plan.a.offset, c.m[0].var) != 1 || !are_taps(c, plan.b.offset, *row, *point))
        return std::nullopt;
    const FilterSizes sizes{.images = c.k.size() == 3 ? c.k[0].extent.constant() : 1,
                            .height = down.extent.constant(),
                            .width = across.extent.constant(),
                            .channels = plan.n.constant() / 9,
                            .columns = plan.m.constant(),
                            .border = false,
                            .gradient = true};
    auto found = divide(sizes, plan.tile, target);
    if (found) {
        found->point_step = *point;
        found->result_step = *result;
    }
    return found;
}

bool filters_gradient(const FilterSizes& sizes, const TargetInfo& target) {
    const VectorTarget vectors = vector_target(target);
    const TilePlan tile = plan_tile(Expr(9 * sizes.channels), DType::F32, vectors);
    return !vectors.matrix_units && divide(sizes, tile, target).has_value();
}

}  // namespace ingot::codegen
