// Choices of block sizes and packing. See decisions.h.
#include "codegen/contraction/decisions.h"

#include <algorithm>

#include "codegen/contraction/contraction.h"
#include "codegen/contraction/matrix_kernel.h"
#include "codegen/contraction/micro_kernel.h"
#include "codegen/contraction/split_kernel.h"
#include "codegen/llvm/emit_shape.h"
#include "ir/error.h"

namespace ingot::codegen {
namespace {

/// Rows are read in place unless they would fight for the same cache sets, or B's panels are so
/// many that packing is for nothing.
bool should_pack(const ContractionPlan& plan, const Contraction& c, bool parts, bool skips) {
    if (plan.a.form == OperandForm::Computed || !plan.a.step.is(1)) return true;
    if (skips) return false;
    if (plan.m.is_constant() && plan.m.constant() <= 4) return false;
    const std::int64_t panels = or_default(ceil_div(plan.n, plan.tile.columns()), 16);
    if (panels < 4) return false;
    if (c.m.empty()) return false;
    // One stream is a few per cent faster than as many as there are rows, over enough panels.
    if (parts && panels >= 48) return true;
    const auto linear = linear_in(plan.a.offset, c.m.back().var);
    if (!linear || !linear->stride.is_constant()) return panels >= 8;
    return linear->stride.constant() * (plan.pairs ? 2 : bytes(c.accumulate)) % 2048 == 0;
}

/// Whether rows are points of small images that are read through windows with a border: up to a
/// fifth of all taps (7 x 7 points) then lie outside.
bool is_bordered_image(const ContractionPlan& plan, const Contraction& c) {
    constexpr std::int64_t kTiles = 3;  // a row of the image that is longer fills tiles by itself
    if (!plan.windows || plan.a.form != OperandForm::Runs || !plan.a.step.is(1) ||
        plan.a.mask == kNone || c.m.size() < 2)
        return false;
    return std::ranges::all_of(c.m, [](const Loop& l) { return l.extent.is_constant(); }) &&
           c.m.back().extent.constant() < kTiles * plan.tile.rows;
}

/// Puts the same row of all images side by side, where the second cache has room for what their
/// windows read: tiles then lie at a border as a whole.
void order_rows(Decisions& d, const Contraction& c, const TargetInfo& target) {
    if (c.m.size() != 3 || c.k.empty()) return;
    const auto tap = linear_in(d.plan.a.offset, c.k[0].var);
    if (!tap || !tap->stride.is_constant() || !c.k[0].extent.is_constant()) return;
    const std::int64_t read = c.m[0].extent.constant() * tap->stride.constant() *
                              c.k[0].extent.constant() * bytes(c.accumulate);
    if (read <= 0 || read > static_cast<std::int64_t>(target.l2_bytes) / 2) return;
    d.rows_of_images = true;
    std::swap(d.rows[0], d.rows[1]);
}

/// Parts of a panel are used from the first cache where it has room for one beside a tile's rows.
std::int64_t choose_block_k(const ContractionPlan& plan, const TargetInfo& target, int rows,
                            int element_bytes) {
    const bool one_run = plan.a.form == OperandForm::Computed || plan.a.segments.is(1);
    if (plan.b.form != OperandForm::Panels || !one_run) return 0;
    const std::int64_t k = or_default(plan.k, 1024) / (plan.pairs ? 2 : 1);
    const std::int64_t m = or_default(plan.m, 4096);
    const std::int64_t part = kSumBlock * (plan.tile.columns() + rows) * element_bytes;
    const bool fits = part <= static_cast<std::int64_t>(target.l1_bytes);
    return fits && k > kSumBlock && m > rows ? kSumBlock : 0;
}

/// About how many rows a block may have.
std::int64_t choose_block(const ContractionPlan& plan, const TargetInfo& target, int rows,
                          int element_bytes, bool parts) {
    // Half of the second cache for A, the rest for B's panel and the results; more where only a
    // part of a panel is in use at a time. Each block passes over all of B, which mostly comes from
    // memory. Where B's panel must be brought into order anew for each block, blocks are few
    // instead: A then comes from the third cache, a few bytes for every cycle of FMAs, and B is
    // read once or twice. Where that cache is near, a matrix A may come from it anyway: fewer
    // blocks divide more evenly among threads (128 rows, k of 3072, two cores of Zen 4: 87 to 94 %
    // of the peak). An image's windows are far fewer bytes than they seem.
    const bool packs_b = plan.b.form != OperandForm::Panels;
    const ContractionRates rates = vector_target(target).rates;
    const bool near = rates.generated_far >= rates.generated && plan.a.segments.is(1);
    const std::int64_t k =
        std::max<std::int64_t>(1, or_default(plan.k, 1024) / (plan.pairs ? 2 : 1));
    const std::int64_t quarters = packs_b ? 16 : near ? 8 : parts ? 3 : 2;
    const std::int64_t room = static_cast<std::int64_t>(target.l2_bytes) * quarters / 4;
    const std::int64_t fits = room / (k * element_bytes);
    const std::int64_t m = std::max<std::int64_t>(1, or_default(plan.m, 4096));
    // Enough items for every core to get an even share.
    const std::int64_t others = std::max<std::int64_t>(
        1, or_default(ceil_div(plan.n, plan.tile.columns()), 16) * or_default(plan.batch, 1));
    const std::int64_t wanted =
        std::max<std::int64_t>(1, (8 * std::int64_t{target.cores} + others - 1) / others);
    return std::clamp<std::int64_t>(std::min(fits, (m + wanted - 1) / wanted), rows,
                                    packs_b ? 2048 : 1024);
}

/// Divides the rows into blocks of about `block`. Threads take equal numbers of items, so that
/// blocks should be equal: of whole tiles, and none has two more than another (86 tiles
/// in seven blocks of 13, the last of 8, gave one of two threads 6 % more than half). A rest
/// belongs to the last one.
void divide_rows(Decisions& d, std::int64_t block) {
    const std::int64_t height = d.heights[0];
    if (!d.plan.m.is_constant() || d.plan.m.is(0)) {
        d.block_rows = d.most_rows = (block + height - 1) / height * height;
        d.blocks = ceil_div(d.plan.m, d.block_rows);
        return;
    }
    const std::int64_t m = d.plan.m.constant(), rest = d.pad_rest ? 0 : m % height;
    d.tiles = (m - rest + height - 1) / height;
    const std::int64_t count = (m + block - 1) / block;
    const std::int64_t most = (d.tiles + count - 1) / count;
    d.block_rows = most * height;
    d.most_rows = d.block_rows + (rest > 0 ? height : 0);
    d.blocks = (d.tiles + most - 1) / most;
}

std::vector<int> choose_heights(Expr m, int rows) {
    if (m.is_constant()) {
        const std::int64_t tiles = std::max<std::int64_t>(1, (m.constant() + rows - 1) / rows);
        const auto height = static_cast<int>((m.constant() + tiles - 1) / tiles);
        // Several tiles of an odd height, whose packed rows of A are so many bytes apart, run up to
        // 15 % slower on Intel's processors.
        const int even = tiles > 1 ? std::min(rows, height + height % 2) : height;
        return {std::max(1, even)};
    }
    std::vector<int> heights{rows};
    for (int h = 8; h >= 1; h /= 2)
        if (h < rows) heights.push_back(h);
    return heights;
}

std::optional<Expr> find_batch_shift(const Decisions& d, const Contraction& c) {
    if (d.pack_a || c.batch.size() != 1) return std::nullopt;
    const Expr var = c.batch[0].var;
    const auto linear = linear_in(d.plan.a.offset, var);
    if (!linear || !linear->stride.is_constant() || linear->stride.constant() < 0)
        return std::nullopt;
    // Zeros are shifted too, so there must be as many of them.
    const std::int64_t shift = linear->stride.constant() * (d.plan.pairs ? 2 : bytes(d.dtype));
    if (!c.batch[0].extent.is_constant() || shift * c.batch[0].extent.constant() > 64 << 10)
        return std::nullopt;
    // Micro-kernels shift by whole elements, of which pairs are one.
    if (shift % bytes(d.dtype) != 0) return std::nullopt;
    const bool mask_varies = std::any_of(c.a_insts.begin(), c.a_insts.end() - 1,
                                         [&](const Inst& i) { return contains(i.offset, var); });
    if (mask_varies) return std::nullopt;
    return Expr(shift);
}

/// Blocks are rows of tiles, whatever plain products would do.
void decide_winograd(Decisions& d) {
    const Winograd& w = *d.winograd;
    d.heights = {w.height};
    d.block_rows = 2 * w.tile_rows * w.image.width;
    d.most_rows = 1;  // at a time, where some are computed plainly
    d.blocks = Expr(w.blocks());
}

/// Blocks are groups of rows; an item has all taps of a group of channels.
void decide_gradient(Decisions& d) {
    const WinogradGradient& w = *d.gradient;
    d.heights = {w.height_of_tile};
    d.block_rows = w.item_results;
    d.pack_a = true;  // brought into its form
    d.group = static_cast<int>(kWinogradTaps * w.item_channels / d.plan.tile.columns());
    d.blocks = Expr(w.result_groups());
}

void decide_vectors(Decisions& d, const Contraction& c, const TargetInfo& target) {
    d.winograd = choose_winograd(c, d.plan, target);
    if (d.winograd) return decide_winograd(d);
    d.gradient = choose_winograd_gradient(c, d.plan, target);
    if (d.gradient) return decide_gradient(d);
    const int size = bytes(d.dtype);
    d.heights = choose_heights(d.plan.m, d.plan.tile.rows);
    const int rows = d.heights[0];
    d.block_k = choose_block_k(d.plan, target, rows, size);
    d.skips = is_bordered_image(d.plan, c);
    if (d.skips) order_rows(d, c, target);
    d.pack_a = should_pack(d.plan, c, d.block_k > 0, d.skips);
    constexpr std::int64_t kTilesForPairs = 3;  // from so many on it pays
    d.pairs_once = d.plan.pairs && d.plan.b.form == OperandForm::Panels &&
                   or_default(d.plan.m, 512) >= kTilesForPairs * d.plan.tile.rows;
    d.b_in_place = d.plan.b.form == OperandForm::Columns && !d.plan.pairs &&
                   d.plan.m.is_constant() && d.plan.m.constant() <= 2 * d.plan.tile.rows;
    if (d.plan.m.is_constant() && d.plan.m.constant() % rows != 0) {
        const std::int64_t m = d.plan.m.constant();
        d.pad_rest = (m + rows - 1) / rows * rows * 50 <= m * 51;
        if (!d.pad_rest) d.heights.push_back(static_cast<int>(m % rows));
    }
    divide_rows(d, choose_block(d.plan, target, rows, size, d.block_k > 0));
}

/// Bringing an element of B into order, which mostly comes from memory, takes as long as the
/// products of this many rows with it.
double rows_for_order(const Decisions& d) {
    if (!d.plan.split() || d.plan.b.form == OperandForm::Panels) return 32;
    return d.b_in_place || d.b_by_points ? 64 : 128;
}

/// Splitting a row of A, which every core does that has the row, takes as long as so many panels
/// pass over it.
constexpr double kSplitPanels = 3.5;
constexpr std::int64_t kMostPanels = 8;  // of a group

/// Blocks of rows and groups of panels, and what they cost. While a part of k is worked on, that
/// part of A and the sums of the group stay in the second cache; each part of B is put in order
/// anew for each block, which is little beside some hundred rows. Threads take equal numbers of
/// items.
double divide_matrix(Decisions& d, const TargetInfo& target) {
    const auto l2 = static_cast<std::int64_t>(target.l2_bytes);
    const std::int64_t cores = std::max(1U, target.cores);
    const std::int64_t m = std::max<std::int64_t>(1, or_default(d.plan.m, 4096));
    const std::int64_t k = std::max<std::int64_t>(1, or_default(d.plan.k, 1024));
    const std::int64_t batch = or_default(d.plan.batch, 1);
    const std::int64_t tiles = (m + kMatrixRows - 1) / kMatrixRows;
    const std::int64_t panels =
        std::max<std::int64_t>(1, or_default(ceil_div(d.plan.n, d.plan.tile.columns()), 16));
    // Other forms than these two bring a panel of all k into order first.
    const bool as_it_lies = d.plan.b.form == OperandForm::Panels ||
                            d.plan.b.form == OperandForm::Columns || d.b_as_it_lies();
    const std::int64_t most_panels =
        as_it_lies ? kMostPanels
                   : std::clamp<std::int64_t>(l2 / 4 / (k * kMatrixColumns * 4), 1, kMostPanels);
    // Split, a part of k is passed by all panels of a group, so that the sums of all of them are
    // kept; all of a block's A is kept, if not in the second cache: a few megabytes for each
    // thread. Else a panel passes over all of A, which stays in the second cache.
    constexpr std::int64_t kMostBytes = 6 << 20;
    const std::int64_t sums = kMatrixColumns * 4;
    const std::int64_t most_rows = std::max<std::int64_t>(
        2 * kMatrixRows,
        d.plan.split() ? std::min(l2 / 2 / (most_panels * sums + d.block_k * d.matrix_bytes()),
                                  kMostBytes / (k * d.matrix_bytes()))
                       : l2 * 5 / 8 / (k * d.matrix_bytes() + sums));
    const std::int64_t fewest = (m + most_rows - 1) / most_rows;
    const double order_rows = rows_for_order(d);
    const double split_panels = d.plan.split() ? kSplitPanels : 0;
    double best = 0;
    for (std::int64_t count = fewest; count < fewest + 2 * cores; ++count)
        for (std::int64_t group = 1; group <= std::min(panels, most_panels); ++group) {
            const std::int64_t height = (tiles + count - 1) / count;
            const std::int64_t items =
                batch * ((tiles + height - 1) / height) * ((panels + group - 1) / group);
            const std::int64_t turns = (items + cores - 1) / cores;
            // Passing over A costs as much as a fraction of a panel.
            const std::int64_t groups = (panels + group - 1) / group;
            const std::int64_t blocks_of_core = (turns + groups - 1) / groups;
            const auto rows = static_cast<double>(height * kMatrixRows);
            const double cost = static_cast<double>(turns) * (rows + order_rows) *
                                    (static_cast<double>(group) + 0.1) +
                                static_cast<double>(blocks_of_core) * rows * split_panels;
            if (best > 0 && cost >= best) continue;
            best = cost;
            d.group = static_cast<int>(group);
            d.block_rows = height * kMatrixRows;
        }
    d.most_rows = d.block_rows;
    d.blocks = ceil_div(d.plan.m, Expr(d.block_rows));
    return best;
}

/// The same for an image whose points serve all taps, if that takes less than `other`.
void divide_image(Decisions& d, ImageRows image, const TargetInfo& target, double other) {
    const std::int64_t cores = std::max(1U, target.cores);
    const std::int64_t panels =
        std::max<std::int64_t>(1, or_default(ceil_div(d.plan.n, d.plan.tile.columns()), 16));
    const auto room = static_cast<std::int64_t>(target.l2_bytes) * 3 / 4;
    const double order_rows = rows_for_order(d);
    double best = other;
    for (std::int64_t block = 1; block <= image.height; ++block)
        for (std::int64_t group = 1; group <= std::min(panels, kMostPanels); ++group) {
            image.block = block;
            const std::int64_t rows =
                (image.span(block) + kMatrixRows / 2 - 1) / (kMatrixRows / 2) * (kMatrixRows / 2);
            const std::int64_t bytes = image.points() * image.channels * d.matrix_bytes() +
                                       rows * group * kMatrixColumns * 4;
            if (bytes > room && block > 1) break;
            const std::int64_t groups = (panels + group - 1) / group;
            const std::int64_t items = image.images * image.blocks_of_image() * groups;
            const std::int64_t turns = (items + cores - 1) / cores;
            const std::int64_t blocks_of_core = (turns + groups - 1) / groups;
            const double split = static_cast<double>(image.points()) * kSplitPanels /
                                 static_cast<double>(image.taps());
            const double cost = static_cast<double>(turns) *
                                    (static_cast<double>(rows) + order_rows) *
                                    (static_cast<double>(group) + 0.1) +
                                static_cast<double>(blocks_of_core) * split;
            if (cost >= best) continue;
            best = cost;
            d.image = image;
            d.group = static_cast<int>(group);
            d.most_rows = (rows + kMatrixRows - 1) / kMatrixRows * kMatrixRows;
            d.block_rows = d.most_rows;
            d.blocks = Expr(image.images * image.blocks_of_image());
        }
}

/// Whether element (m + 1, k) of the operand always follows (m, k) in memory.
bool side_by_side(const OperandPlan& a, const Contraction& c) {
    if (!a.segments.is(1) || a.mask != kNone || c.m.size() != 1) return false;
    const auto linear = linear_in(a.offset, c.m[0].var);
    return linear && linear->stride.is(1);
}

/// Whether panels of B consist of whole rows of neighbours, each somewhere: what a column adds to
/// an element's place does not depend on k.
bool rows_of_neighbours(const OperandPlan& b, const Contraction& c) {
    if (b.form != OperandForm::Runs || b.mask != kNone) return false;
    Expr together = 1;
    bool consecutive = true;
    for (std::size_t n = c.n.size(); n-- > 0;) {
        const auto linear = linear_in(b.offset, c.n[n].var);
        if (!linear || !linear->stride.is_constant() || !c.n[n].extent.is_constant()) return false;
        consecutive = consecutive && linear->stride == together;
        if (consecutive) together *= c.n[n].extent;
    }
    return mod(together, Expr(kMatrixColumns)).is(0);
}

/// What products on matrix units need besides.
void decide_matrix(Decisions& d, const Contraction& c, const TargetInfo& target) {
    const OperandPlan& a = d.plan.a;
    d.heights = {kMatrixRows, kMatrixRows / 2};
    d.block_k = d.plan.split() ? kSplitBlock : kMatrixBlock;
    d.pack_a = true;
    d.matrix_runs = a.form == OperandForm::Computed ||
                    (a.step.is(1) && (a.segments.is(1) || mod(a.run, Expr(kMatrixK)).is(0)));
    d.b_in_place = d.plan.b.form == OperandForm::Columns;
    const OperandPlan& b = d.plan.b;
    d.b_by_rows = d.plan.split() && b.form == OperandForm::Runs && b.step.is(1) && b.segments.is(1);
    d.b_by_points = d.plan.split() && !d.b_by_rows && rows_of_neighbours(b, c);
    d.a_side_by_side = d.plan.split() && !d.matrix_runs && side_by_side(a, c);
    const double cost = divide_matrix(d, target);
    if (!d.plan.split()) return;
    if (const auto image = find_image(c, d.plan, kMatrixK)) divide_image(d, *image, target, cost);
}

}  // namespace

Decisions decide(const Kernel& kernel, const TargetInfo& target) {
    if (!kernel.contraction) throw InternalError("contraction: a kernel without one");
    const auto plan = plan_contraction(*kernel.contraction, kernel.buffers, vector_target(target));
    if (!plan) throw NotSupported("contraction: no generated form");
    const Contraction& c = *kernel.contraction;
    Decisions d;
    d.plan = *plan;
    d.dtype = c.accumulate;
    d.rows = c.m;
    // Of half a cache's results little is kept for the next kernel, since all else that both touch
    // needs room too. A line that is stored past the caches is not read before.
    for (const KernelBuffer& buffer : kernel.buffers)
        d.streamed.push_back(is_large_output(buffer, target, target.l3_bytes / 2));
    const int size = bytes(d.dtype);
    if (plan->by_matrix_units())
        decide_matrix(d, c, target);
    else
        decide_vectors(d, c, target);
    const int rows = d.heights[0];
    d.groups = ceil_div(ceil_div(plan->n, plan->tile.columns()), Expr(d.group));

    const std::int64_t summed_rows = d.block_k > 0 ? d.most_rows : rows;
    const int summed_panels = plan->by_matrix_units() && !plan->split() ? 1 : d.group;
    Expr end = Expr(summed_rows * plan->tile.columns() * summed_panels * size);
    auto place = [&](Expr byte_count) {
        const Expr at = end;
        end = end + Expr(64) * ceil_div(byte_count, 64);
        return at;
    };
    end = Expr(64) * ceil_div(end, 64);
    const bool computed = plan->a.form == OperandForm::Computed;
    const std::int64_t table_rows = d.pack_a ? rows : d.most_rows;
    d.scratch.table =
        place(d.image      ? Expr(d.image->points() * 8)
              : d.winograd ? max(Expr(4 * d.winograd->points()), plan->a.segments) * Expr(8)
              : d.gradient ? Expr(4 * d.gradient->points() * 8)
                           : (computed ? Expr(1) : plan->a.segments) * Expr(table_rows * 8));
    // One for a panel that is brought into order, and those of a group that are not.
    const std::int64_t b_tables = d.b_by_rows ? 1 + d.group : 1;
    d.scratch.b_table = place(plan->b.form == OperandForm::Runs
                                  ? plan->b.segments * Expr(b_tables * plan->tile.columns() * 8)
                                  : Expr(0));
    d.scratch.b_points = place(Expr(d.b_by_points ? (d.block_k + kMatrixK) * 8 : 0));
    d.scratch.image =
        place(Expr(d.image ? d.image->points() * d.image->channels * d.matrix_bytes() : 0));
    d.scratch.image_steps = place(d.image ? floor_div(plan->k, kMatrixK) * Expr(8) : Expr(0));
    d.batch_shift = find_batch_shift(d, c);
    const Expr shifted = d.batch_shift ? *d.batch_shift * (plan->batch - Expr(1)) : Expr(0);
    // Never empty: the packer knows zeros by their address.
    const std::int64_t zeros =
        d.gradient ? std::max(d.gradient->item_channels, d.gradient->item_results) : 1;
    d.scratch.zero = place(
        shifted + max(Expr(zeros), max(computed ? Expr(0) : plan->a.run,
                                       plan->b.form == OperandForm::Runs ? plan->b.run : Expr(0))) *
                      Expr(size));
    const bool turned = plan->by_matrix_units() && !d.matrix_runs && !d.a_side_by_side;
    d.scratch.a_rows =
        place(computed || turned ? plan->k * Expr(std::int64_t{rows} * size) : Expr(0));
    const Expr k_units = d.units(plan->k);
    d.scratch.a_packed =
        place(d.image                   ? d.matrix_k() * Expr(kMatrixRows * d.matrix_bytes())
              : plan->by_matrix_units() ? d.matrix_k() * Expr(d.most_rows * d.matrix_bytes())
              : d.pack_a && !d.gradient ? k_units * Expr(d.most_rows * size)
                                        : Expr(0));
    const int ordered_panels = d.b_as_it_lies() ? 1 : d.group;
    d.scratch.panel = place(
        plan->b.form == OperandForm::Panels && !d.pairs_once ? Expr(0)
        : d.gradient ? Expr(kWinogradTaps * d.block_rows * plan->tile.columns() * size)
                     : k_units * Expr(std::int64_t{plan->tile.columns()} * ordered_panels * size));
    const bool units = plan->by_matrix_units();
    d.scratch.b_part = place(Expr(units ? d.block_k * kMatrixColumns * d.matrix_bytes() : 0));
    d.scratch.room = place(Expr(plan->split() ? kMatrixRows * kMatrixColumns * size : 0));
    d.scratch.tile_shapes = place(Expr(units ? kTileShapeBytes : 0));
    const std::int64_t noted = d.most_rows / (kMatrixRows / 2) + d.group;
    d.scratch.extremes = place(Expr(plan->split() ? noted * std::int64_t{sizeof(Extremes)} : 0));
    if (d.gradient) {
        const WinogradGradient& w = *d.gradient;
        d.scratch.winograd_input = place(Expr(kWinogradPlanes * w.point_plane() * size));
        d.scratch.winograd_results = place(Expr(kWinogradPlanes * w.result_plane() * size));
        d.scratch.winograd_sums = place(Expr(kWinogradPlanes * w.sum_plane() * size));
        d.scratch.total = end;
        return d;
    }
    const auto floats = [&](std::int64_t count) {
        return place(Expr(d.winograd ? count * size : 0));
    };
    const Winograd w = d.winograd.value_or(Winograd{.height = 1});
    d.scratch.winograd_table = place(Expr(d.winograd ? w.tiles() * 8 : 0));
    d.scratch.winograd_input = floats(kWinogradPlanes * w.plane());
    d.scratch.winograd_weights = floats(kWinogradPlanes * w.tap_plane(plan->tile.columns()));
    d.scratch.winograd_sums = floats(kWinogradPlanes * w.sum_plane(plan->tile.columns()));
    d.scratch.winograd_results = floats(4 * w.across() * plan->tile.columns());
    d.scratch.winograd_rough = place(Expr(d.winograd ? w.tile_rows : 0));
    d.scratch.total = end;
    return d;
}

}  // namespace ingot::codegen
