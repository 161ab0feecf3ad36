// See product_form.h.
#include "codegen/contraction_gpu/product_form.h"

#include <algorithm>

namespace ingot::codegen {

namespace {

constexpr std::int64_t kAligned = 8;    // elements of one copy of 16 bytes
constexpr std::int64_t kLikely = 1024;  // rows, where only the run time knows them
constexpr int kProcessors = 132;
constexpr std::int64_t kLongest = 1024;  // sums; copies by threads fall behind in longer ones

std::int64_t pieces(std::int64_t n, std::int64_t by) { return (n + by - 1) / by; }

std::optional<ProductOperand> operand(const std::vector<Inst>& insts, Expr row, Expr sum) {
    if (insts.size() != 1) return std::nullopt;
    const Inst& load = insts[0];
    if (load.kind != InstKind::Load || load.mask != kNone) return std::nullopt;
    const auto along = linear_in(load.offset, sum);
    if (!along || !along->stride.is(1)) return std::nullopt;
    const auto across = linear_in(along->rest, row);
    if (!across) return std::nullopt;
    // Every copy of 16 bytes must be aligned.
    if (!across->stride.is_constant() || across->stride.constant() % kAligned != 0)
        return std::nullopt;
    if (!across->rest.is_constant() || across->rest.constant() % kAligned != 0) return std::nullopt;
    return ProductOperand{load.buffer, across->rest, across->stride};
}

// Nothing but the sums, rounded to 16 bits, row by row.
bool is_bare(const Kernel& kernel) {
    const Contraction& c = *kernel.contraction;
    if (c.epilogue.stores.size() != 1) return false;
    const Store& s = c.epilogue.stores[0];
    const DType dtype = kernel.buffers.at(static_cast<std::size_t>(s.buffer)).dtype;
    if (s.mask != kNone || (dtype != DType::BF16 && dtype != DType::F16)) return false;
    for (const Inst& i : c.epilogue.insts)
        if (i.kind != InstKind::Accumulator &&
            !(i.kind == InstKind::Prim && i.prim == Prim::Convert && i.dtype == dtype))
            return false;
    const auto along = linear_in(s.offset, c.n[0].var);
    if (!along || !along->stride.is(1)) return false;
    const auto across = linear_in(along->rest, c.m[0].var);
    return across && across->stride.is_constant() && across->rest.is_constant();
}

}  // namespace

std::optional<ProductForm> product_form(const Kernel& kernel) {
    if (!kernel.contraction || kernel.instances != 1) return std::nullopt;
    const Contraction& c = *kernel.contraction;
    if (!c.batch.empty() || c.m.size() != 1 || c.n.size() != 1 || c.k.size() != 1)
        return std::nullopt;
    if (c.b_panel != 0 || c.accumulate != DType::F32) return std::nullopt;
    if (!c.n[0].extent.is_constant() || !c.k[0].extent.is_constant()) return std::nullopt;
    ProductForm form;
    form.rows = c.m[0].extent;
    form.columns = c.n[0].extent.constant();
    form.depth = c.k[0].extent.constant();
    if (form.depth % kAligned != 0 || (form.odd() && !is_bare(kernel))) return std::nullopt;
    const auto a = operand(c.a_insts, c.m[0].var, c.k[0].var);
    const auto b = operand(c.b_insts, c.n[0].var, c.k[0].var);
    if (!a || !b) return std::nullopt;
    const auto type = [&](const ProductOperand& o) {
        return kernel.buffers.at(static_cast<std::size_t>(o.buffer)).dtype;
    };
    form.a = *a;
    form.b = *b;
    form.dtype = type(*a);
    if (form.dtype != type(*b) || (form.dtype != DType::BF16 && form.dtype != DType::F16))
        return std::nullopt;
    for (const KernelBuffer& b : kernel.buffers)
        if (b.scope != BufferScope::Argument) return std::nullopt;
    for (const Store& s : c.epilogue.stores)
        if (s.mode != StoreMode::Write) return std::nullopt;
    return form;
}

// Rounds of resident blocks; each starts, takes its pieces at the pace of the slowest of three
// (what is on its way when memory answers, the matrix units, the second cache), and finishes its
// results with an epilogue like a GELU. Fitted by hand on an H200 to 25 measured pairs of shape and
// tile, from 5 to 130 us: mostly within 10 %.
double estimated_time(const ProductForm& form, std::int64_t rows, const ProductTile& tile) {
    constexpr double kLaunch = 1.6, kStart = 0.5, kStartOfKilobyte = 0.04;  // us
    constexpr double kAnswer = 0.8;             // from asking for a piece to its arrival
    constexpr double kCacheOfKilobyte = 0.009;  // from the second cache, of one multiprocessor
    constexpr double kMultiplyAdds = 3.6e6;     // of one multiprocessor's units in a us
    constexpr double kResult = 0.8 / 8192;      // an odd product's take as long
    const std::int64_t blocks = pieces(rows, tile.rows()) * pieces(form.columns, tile.columns);
    const double resident =
        static_cast<double>(std::min<std::int64_t>(tile.blocks, pieces(blocks, kProcessors)));
    const auto rounds =
        static_cast<double>(pieces(blocks, std::int64_t{kProcessors} * tile.blocks));
    const double kilobytes = tile.stage_bytes() / 1024.0;
    const double results = static_cast<double>(tile.rows()) * tile.columns;
    const double piece =
        std::max({kAnswer / (tile.stages - 2), resident * results * kDepth / kMultiplyAdds,
                  resident * kilobytes * kCacheOfKilobyte});
    return kLaunch + rounds * (kStart + kStartOfKilobyte * kilobytes +
                               static_cast<double>(pieces(form.depth, kDepth)) * piece +
                               resident * results * kResult);
}

const ProductTile& tile_of(const ProductForm& form) {
    const std::int64_t rows = form.rows.is_constant() ? form.rows.constant() : kLikely;
    return *std::ranges::min_element(
        kProductTiles, {}, [&](const ProductTile& t) { return estimated_time(form, rows, t); });
}

// The library's product, at 700 TFLOP/s or 3.5 TB/s behind its launch, and the kernel that reads
// and writes its result; fitted as above. A tenth is asked for.
bool product_wins(const ProductForm& form) {
    if (!form.rows.is_constant() || form.depth > kLongest) return false;
    const auto rows = static_cast<double>(form.rows.constant());
    const auto columns = static_cast<double>(form.columns), depth = static_cast<double>(form.depth);
    const double bytes = 2 * (rows * depth + columns * depth + rows * columns);
    const double library = 3.2 + std::max(2 * rows * columns * depth / 700e6, bytes / 3.5e6);
    const double rest = 1.7 + rows * columns * 0.957e-6;  // of the copy of odd rows, too
    const double own = estimated_time(form, form.rows.constant(), tile_of(form));
    return 1.1 * own < library + rest;
}

}  // namespace ingot::codegen
