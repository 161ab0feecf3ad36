// Analysis and cost of contractions. See contraction_model.h.
#include "schedule/contraction_model.h"

#include <algorithm>
#include <span>

namespace ingot {
namespace {

Expr extent_product(std::span<const Loop> loops) {
    Expr result = 1;
    for (const Loop& l : loops) result *= l.extent;
    return result;
}

bool depends(const std::vector<Inst>& insts, InstId id, Expr symbol) {
    const Inst& inst = insts[id];
    if (contains(inst.offset, symbol)) return true;
    if (inst.mask != kNone && depends(insts, inst.mask, symbol)) return true;
    return std::any_of(inst.operands.begin(), inst.operands.end(),
                       [&](InstId o) { return depends(insts, o, symbol); });
}

/// The load that is the operand, if it is nothing but a load of type `dtype`.
const Inst* plain_load(std::span<const KernelBuffer> buffers, const std::vector<Inst>& insts,
                       DType dtype) {
    if (insts.empty()) return nullptr;
    const Inst& last = insts.back();
    if (last.kind != InstKind::Load || last.dtype != dtype) return nullptr;
    if (buffers[static_cast<std::size_t>(last.buffer)].dtype != dtype) return nullptr;
    // An offset that another inst bound at run time is not affine in the loops.
    const bool bound = std::any_of(insts.begin(), insts.end(),
                                   [](const Inst& i) { return i.kind == InstKind::Bind; });
    return bound ? nullptr : &last;
}

/// From which loop on `loops` walk through memory with one step; loops.size() when not even the
/// last one does. A mask must not change inside.
std::size_t run_start(const std::vector<Inst>& insts, const Inst& load, std::span<const Loop> loops,
                      Expr step) {
    std::size_t start = loops.size();
    Expr expected = step;
    while (start > 0) {
        const Loop& loop = loops[start - 1];
        const auto linear = linear_in(load.offset, loop.var);
        if (!linear || !(linear->stride == expected || loop.extent.is(1))) break;
        if (load.mask != kNone && depends(insts, load.mask, loop.var)) break;
        expected = expected * loop.extent;
        --start;
    }
    return start;
}

OperandPlan plan_runs(const std::vector<Inst>& insts, const Inst& load,
                      const std::vector<Loop>& k) {
    OperandPlan plan;
    plan.buffer = load.buffer;
    plan.offset = load.offset;
    plan.mask = load.mask;
    if (!k.empty()) {
        const auto step = linear_in(load.offset, k.back().var);
        if (!step) return plan;
        plan.step = k.back().extent.is(1) ? Expr(1) : step->stride;
    }
    plan.inner = run_start(insts, load, k, plan.step);
    if (plan.inner == k.size() && !k.empty()) return plan;
    if (load.mask != kNone && load.constant.to_double() != 0) return plan;
    plan.form = OperandForm::Runs;
    const std::span<const Loop> loops(k);
    plan.run = extent_product(loops.subspan(plan.inner));
    plan.segments = extent_product(loops.first(plan.inner));
    return plan;
}

OperandPlan plan_b(std::span<const KernelBuffer> buffers, const Contraction& c, DType dtype) {
    OperandPlan plan;
    const Inst* load = plain_load(buffers, c.b_insts, dtype);
    if (!load) return plan;
    if (c.b_panel > 0) {
        plan.form = OperandForm::Panels;
        plan.buffer = load->buffer;
        plan.offset = load->offset;
        return plan;
    }
    if (load->mask == kNone && run_start(c.b_insts, *load, c.n, 1) == 0) {
        // One distance for all of k?
        const auto step = c.k.empty() ? std::nullopt : linear_in(load->offset, c.k.back().var);
        if (c.k.empty() || (step && run_start(c.b_insts, *load, c.k, step->stride) == 0)) {
            plan.form = OperandForm::Columns;
            plan.buffer = load->buffer;
            plan.offset = load->offset;
            plan.stride = c.k.empty() ? Expr(0) : step->stride;
            return plan;
        }
    }
    return plan_runs(c.b_insts, *load, c.k);
}

}  // namespace

namespace {

void plan_operands(ContractionPlan& plan, std::span<const KernelBuffer> buffers,
                   const Contraction& c, DType dtype) {
    plan.a = {};
    plan.b = plan_b(buffers, c, dtype);
    if (const Inst* load = plain_load(buffers, c.a_insts, dtype))
        plan.a = plan_runs(c.a_insts, *load, c.k);
}

}  // namespace

TilePlan plan_tile(Expr n, DType accumulate, const VectorTarget& target) {
    TilePlan tile;
    tile.lanes = std::max(1, target.vector_bits / 8 / bytes(accumulate));
    tile.vectors = 2;
    // Two vectors of B and, on 16 registers, one, otherwise a few broadcasts of A beside the tile.
    tile.rows = target.tile_vectors / tile.vectors;
    if (n.is_constant()) {
        // Half vectors where a group has few channels; they run at the same rate on some machines.
        while (tile.lanes > 4 && n.constant() * 2 <= tile.lanes) tile.lanes /= 2;
        if (n.constant() <= tile.lanes) tile.vectors = 1;
    }
    return tile;
}

namespace {

double number(Expr e) { return e.is_constant() ? static_cast<double>(e.constant()) : 512.0; }

double rounded(double value, double unit) {
    return unit *
           std::max(1.0, static_cast<double>(static_cast<std::int64_t>((value + unit - 1) / unit)));
}

/// Cycles that splitting takes, as FMAs of one core's vectors (32 a cycle): a third of a cycle an
/// element, twice that where the rows must be turned first.
double splitting(const ContractionPlan& plan) {
    constexpr double kElement = 11;
    const bool turned = plan.a.form == OperandForm::Runs && !plan.a.step.is(1);
    const double rows = std::min(number(plan.m), 256.0);
    // Of an image whole steps of k are split once for all taps.
    const bool once = plan.a.form == OperandForm::Runs && plan.a.step.is(1) &&
                      mod(plan.a.run, Expr(kMatrixK)).is(0);
    const double times = once ? 1 / number(plan.a.segments) : turned ? 2 : 1;
    return kElement * times / number(plan.n) + kElement / rows;
}

/// Whether matrix units do it faster than vectors, with all that they need besides.
bool should_split(const ContractionPlan& plan, const VectorTarget& target) {
    const double padding = rounded(number(plan.m), 16) / number(plan.m) *
                           rounded(number(plan.n), 32) / number(plan.n) *
                           rounded(number(plan.k), kMatrixK) / number(plan.k);
    return number(plan.m) >= 24 && number(plan.k) >= 24 &&
           padding / target.rates.split + splitting(plan) < 1;
}

/// Whether matrix units can take pairs as they lie: whole steps of k between the places where a
/// row or a column goes on elsewhere. A few rows are a matter of reading B, which vectors do as
/// fast.
bool units_take_pairs(const ContractionPlan& plan) {
    auto whole_steps = [](Expr e) { return mod(e, Expr(kMatrixK)).is(0); };
    return number(plan.m) >= 8 && (plan.a.segments.is(1) || whole_steps(plan.a.run)) &&
           (plan.b.form != OperandForm::Runs || whole_steps(plan.k));
}

}  // namespace

std::optional<ContractionPlan> plan_contraction(const Contraction& c,
                                                std::span<const KernelBuffer> buffers,
                                                const VectorTarget& target) {
    if (c.accumulate != DType::F32 && c.accumulate != DType::F64) return std::nullopt;
    if (c.a_insts.empty() || c.b_insts.empty()) return std::nullopt;
    ContractionPlan plan;
    plan.batch = extent_product(c.batch);
    plan.m = extent_product(c.m);
    plan.n = extent_product(c.n);
    plan.k = extent_product(c.k);
    plan.tile = plan_tile(plan.n, c.accumulate, target);
    plan_operands(plan, buffers, c, c.accumulate);
    plan.windows = (plan.a.form == OperandForm::Runs && !plan.a.segments.is(1)) ||
                   (plan.b.form == OperandForm::Runs && c.n.size() > 1);
    if (target.bf16_dot && c.accumulate == DType::F32 && plan.a.form == OperandForm::Computed &&
        plan.b.form == OperandForm::Computed) {
        ContractionPlan pairs = plan;
        plan_operands(pairs, buffers, c, DType::BF16);
        auto even = [](Expr e) { return mod(e, Expr(2)).is(0); };
        pairs.pairs =
            pairs.a.form == OperandForm::Runs && pairs.a.step.is(1) && even(pairs.a.run) &&
            pairs.b.form != OperandForm::Computed &&
            (pairs.b.form != OperandForm::Runs || (pairs.b.step.is(1) && even(pairs.b.run)));
        // The right side's pairs are put together in registers of their own.
        pairs.tile.rows = std::min(12, pairs.tile.rows);
        if (pairs.pairs) plan = pairs;
    }
    if (plan.b.form == OperandForm::Panels) {
        // The panels exist already: the tile follows them.
        while (plan.tile.lanes > 1 && c.b_panel % plan.tile.lanes != 0) plan.tile.lanes /= 2;
        plan.tile.vectors = c.b_panel / plan.tile.lanes;
        if (plan.tile.vectors > 4) return std::nullopt;
        const int sums = plan.pairs ? std::min(24, target.tile_vectors) : target.tile_vectors;
        plan.tile.rows = plan.tile.vectors == 1 ? 12 : sums / plan.tile.vectors;
    }
    const bool whole_tile = plan.tile.lanes == 16 && plan.tile.vectors == 2;
    if (target.matrix_units && c.accumulate == DType::F32 && whole_tile) {
        if (plan.pairs && units_take_pairs(plan)) plan.parts = 1;
        if (!plan.pairs && should_split(plan, target)) plan.parts = 3;
        if (plan.by_matrix_units()) plan.tile.rows = kMatrixRows;
    }
    return plan;
}

std::optional<ContractionPlan> plan_contraction(const Kernel& kernel, const VectorTarget& target) {
    if (!kernel.contraction) return std::nullopt;
    return plan_contraction(*kernel.contraction, kernel.buffers, target);
}

namespace {

/// Split convolutions whose weight is not packed ahead, and their weights' gradients, as multiples
/// of the time at the vectors' peak. Measured on Sapphire Rapids with cold caches, 64 channels of
/// 56 x 56 points to 512 of 7 x 7, four images: within 10 %. The weight's way into order, which the
/// library takes at each call too, counts by nanoseconds an element.
ContractionCost split_taps_cost(const ContractionPlan& plan, double peak_time) {
    const bool of_weight = !plan.a.step.is(1);
    const double m = number(plan.m), n = number(plan.n);
    const double weights = (of_weight ? m * n : number(plan.k) * n) * 1e-3;
    if (of_weight) return {peak_time * (1.4 + 43 / m), peak_time * 1.75 + 8 * weights};
    return {peak_time * (1.1 + 30 / n) + 1.3 * weights, peak_time * 1.57 + 2.5 * weights};
}

}  // namespace

ContractionCost contraction_cost(const ContractionPlan& plan, const VectorTarget& target) {
    const ContractionRates& rates = target.rates;
    const double m = number(plan.m), n = number(plan.n), k = number(plan.k);
    const double flops = 2 * number(plan.batch) * m * n * k;
    // Padding of n to whole vectors and what a tile costs besides its FMAs (about 60 cycles'
    // worth).
    const double padded = rounded(n, plan.tile.lanes) / n;
    // A right side that is not in panels is ordered anew for every block of rows, and the blocks
    // are small where k is so large that few rows fit into the caches.
    const double rows = std::clamp((1 << 20) / std::max(k, 1.0), 12.0, 2048.0);
    const double again = rows < m ? 64.0 / rows : 0.0;
    const double overhead =
        1 + 60.0 / (plan.tile.rows * plan.tile.vectors * std::max(k, 1.0)) +
        (plan.b.form == OperandForm::Panels ? 0.0 : 4.0 / std::max(m, 1.0) + again) +
        (plan.a.form == OperandForm::Computed ? 64.0
         : plan.a.step.is(1)                  ? 0.0
                                              : 16.0) /
            std::max(n, 1.0);
    ContractionCost cost;
    // Each panel of the right side passes over all rows of a block. Taps of one image overlap.
    const double taps = number(plan.a.segments);
    const bool far = 4 * std::min(m, rows) * k / taps > 0.8 * static_cast<double>(target.l2_bytes);
    const double peak = rates.peak_gflops * 1e3;
    if (plan.split() && plan.windows && plan.b.form != OperandForm::Panels)
        return split_taps_cost(plan, flops / peak);
    cost.generated =
        plan.split()
            ? flops * padded * (overhead / rates.split + splitting(plan)) / peak
            : flops * padded * overhead / ((far ? rates.generated_far : rates.generated) * peak);
    const bool few = plan.a.form == OperandForm::Runs && number(plan.a.run) < 16;
    const double vendor = !plan.windows ? rates.vendor : few ? rates.vendor_few : rates.vendor_taps;
    cost.vendor = 2.0 + flops / (vendor * peak);
    return cost;
}

}  // namespace ingot
