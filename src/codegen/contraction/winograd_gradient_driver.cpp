// The driver's part for weights' gradients by minimal filtering. See winograd_gradient.h, emitter.h
// and, for what surrounds it, contraction.cpp.
//
// An item passes over the tiles block by block: the points of its channels and the gradients of its
// result channels are brought into their form, which lies in the second cache, and multiplied plane
// by plane, added to the planes' sums. When all tiles have passed by, the sums are brought back to
// taps, a panel of channels at a time. A panel that is not finite is computed again by plain
// products: sums of infinite points, or of finite ones that are too large, are no results.
#include "codegen/contraction/emitter.h"
#include "codegen/contraction/ir_loop.h"
#include "codegen/contraction/winograd_gradient_kernel.h"
#include "codegen/contraction/winograd_kernel.h"

namespace ingot::codegen {

using llvm::Value;

TileShape ContractionEmitter::gradient_shape() const {
    TileShape tile = shape(d_.gradient->height_of_tile, d_.plan.tile.vectors);
    // Of few tiles the vendor's sums are so short that chains of a block would have over twice
    // their error; they are added up in the first cache, a tenth to a fifth of the products' time.
    constexpr std::int64_t kFewTiles = 128, kShortChain = 16;
    const WinogradGradient& w = *d_.gradient;
    const bool few = w.all_tile_rows() * w.across() <= kFewTiles;
    tile.sum_block = few ? kShortChain : kFewRowsSumBlock;
    tile.ahead = false;
    return tile;
}

/// Binds the loops over what is summed.
void ContractionEmitter::bind_point(Value* image, Value* down, Value* across) {
    if (c_.k.size() == 3) symbols_[c_.k[0].var.node()] = image;
    symbols_[c_.k[c_.k.size() - 2].var.node()] = down;
    symbols_[c_.k.back().var.node()] = across;
}

/// f(buffers, sizes, error, row of tiles, first channel, table, zero): pointers to the operand at
/// so many rows of points that a row of tiles reads, from that channel on; zeros outside of the
/// image.
llvm::Function* ContractionEmitter::gradient_table(const char* name, const TableShape& table) {
    auto* ptr = b_.getPtrTy();
    auto* word = b_.getInt64Ty();
    llvm::Function* f =
        begin_function(prefix_ + name, {ptr, ptr, ptr, word, word, ptr, ptr}, false);
    const WinogradGradient& w = *d_.gradient;
    Value* row_of_tiles = f->getArg(3);
    Value* zero = f->getArg(6);
    bind_loops(b_, f->getArg(4), *table.channels, symbols_);
    Value* image = b_.CreateUDiv(row_of_tiles, i64(w.down()));
    Value* first = b_.CreateMul(b_.CreateURem(row_of_tiles, i64(w.down())), i64(2));
    emit_loop(b_, "row", i64(0), i64(table.rows), [&](Value* row) {
        emit_loop(b_, "point", i64(0), i64(table.points), [&](Value* across) {
            Value* down = b_.CreateAdd(first, row);
            bind_point(image, down, across);
            Value* inside = b_.CreateAnd(b_.CreateICmpSLT(down, i64(table.height)),
                                         b_.CreateICmpSLT(across, i64(table.width)));
            Value* from = at(element_, pointer(table.operand->buffer), expr(table.operand->offset));
            Value* place = b_.CreateAdd(b_.CreateMul(row, i64(table.points)), across);
            b_.CreateStore(b_.CreateSelect(inside, from, zero), at(ptr, f->getArg(5), place));
        });
    });
    b_.CreateRetVoid();
    return f;
}

void ContractionEmitter::gradient_tables() {
    const WinogradGradient& w = *d_.gradient;
    fill_points_ = gradient_table("_points", {.operand = &d_.plan.b,
                                              .channels = &c_.n,
                                              .rows = 4,
                                              .points = w.points(),
                                              .height = w.height + 2,
                                              .width = w.width + 2});
    fill_a_ = gradient_table("_results", {.operand = &d_.plan.a,
                                          .channels = &c_.m,
                                          .rows = 2,
                                          .points = 2 * w.across(),
                                          .height = w.height,
                                          .width = w.width});
}

/// Brings the points of a block into their form, or the gradients of its results.
void ContractionEmitter::form_tiles(const RowBlock& block, Value* first, bool points) {
    const WinogradGradient& w = *d_.gradient;
    const TileShape tile = gradient_shape();
    Value* table = bytes_at(scratch_, d_.scratch.table);
    Value* zero = bytes_at(scratch_, d_.scratch.zero);
    const std::int64_t channels = points ? w.item_channels : w.item_results;
    Value* formed =
        bytes_at(scratch_, points ? d_.scratch.winograd_input : d_.scratch.winograd_results);
    emit_loop(b_, "row", block.start, block.end, [&](Value* row) {
        call(points ? fill_points_ : fill_a_, {row, first, table, zero});
        Value* begins = b_.CreateMul(b_.CreateSub(row, block.start), i64(w.across() * channels));
        Value* out = at(element_, formed, begins);
        if (points)
            b_.CreateCall(winograd_input(module_, tile),
                          {table, i64(w.points()), i64(w.across()), i64(channels), out,
                           i64(channels), i64(w.point_plane())});
        else
            b_.CreateCall(winograd_results(module_, tile),
                          {table, i64(w.across()), i64(channels), out, i64(w.result_plane())});
    });
}

/// Adds a block's products to the sums of all planes, or stores them there.
void ContractionEmitter::multiply_planes(const RowBlock& block, Value* add) {
    const WinogradGradient& w = *d_.gradient;
    llvm::Function* kernel = turned_kernel(module_, gradient_shape());
    Value* points = bytes_at(scratch_, d_.scratch.winograd_input);
    Value* results = bytes_at(scratch_, d_.scratch.winograd_results);
    Value* sums = bytes_at(scratch_, d_.scratch.winograd_sums);
    Value* tiles = b_.CreateMul(b_.CreateSub(block.end, block.start), i64(w.across()));
    emit_loop(b_, "plane", i64(0), i64(kWinogradPlanes), [&](Value* n) {
        Value* b = at(element_, points, b_.CreateMul(n, i64(w.point_plane())));
        Value* a = at(element_, results, b_.CreateMul(n, i64(w.result_plane())));
        Value* c = at(element_, sums, b_.CreateMul(n, i64(w.sum_plane())));
        const auto steps = [&](const char* name, std::int64_t end, std::int64_t step, auto body) {
            emit_loop(b_, name, i64(0), i64(end), i64(step), {},
                      [&](Value* i, const std::vector<Value*>&) {
                          body(i);
                          return std::vector<Value*>{};
                      });
        };
        steps("columns", w.item_channels, columns(), [&](Value* column) {
            steps("tile", w.item_results, w.height_of_tile, [&](Value* row) {
                Value* place = b_.CreateAdd(b_.CreateMul(row, i64(w.item_channels)), column);
                b_.CreateCall(kernel, {at(element_, a, row), i64(w.item_results), tiles,
                                       at(element_, b, column), i64(w.item_channels),
                                       at(element_, c, place), i64(w.item_channels), add});
            });
        });
    });
}

/// The sums of one panel by plain products: row by row of the image, tap by tap.
void ContractionEmitter::plain_taps(Value* first_row, Value* first_column, Value* out) {
    const WinogradGradient& w = *d_.gradient;
    llvm::Function* kernel = turned_kernel(module_, gradient_shape());
    const SymbolValues kept = symbols_;
    emit_loop(b_, "tap", i64(0), i64(kWinogradTaps), [&](Value* tap) {
        bind_loops(b_, b_.CreateAdd(b_.CreateMul(tap, i64(w.channels)), first_column), c_.n,
                   symbols_);
        Value* of_tap = at(element_, out, b_.CreateMul(tap, i64(w.item_results * columns())));
        emit_loop(b_, "image_row", i64(0), i64(w.images * w.height), [&](Value* row) {
            bind_point(b_.CreateUDiv(row, i64(w.height)), b_.CreateURem(row, i64(w.height)),
                       i64(0));
            symbols_[c_.m[0].var.node()] = first_row;
            Value* a = at(element_, pointer(d_.plan.a.buffer), expr(d_.plan.a.offset));
            Value* b = at(element_, pointer(d_.plan.b.buffer), expr(d_.plan.b.offset));
            Value* add = b_.CreateICmpNE(row, i64(0));
            emit_loop(b_, "tile", i64(0), i64(w.item_results), i64(w.height_of_tile), {},
                      [&](Value* n, const std::vector<Value*>&) {
                          b_.CreateCall(kernel,
                                        {at(element_, a, n), i64(w.result_step), i64(w.width), b,
                                         i64(w.point_step),
                                         at(element_, of_tap, b_.CreateMul(n, i64(columns()))),
                                         i64(columns()), add});
                          return std::vector<Value*>{};
                      });
        });
    });
    symbols_ = kept;
}

/// One item. `is_fresh`: the item before had other channels of points.
void ContractionEmitter::gradient_item(Value* group, Value* rows, Value* is_fresh) {
    const WinogradGradient& w = *d_.gradient;
    Value* first_channel = b_.CreateMul(group, i64(w.item_channels));
    Value* first_row = b_.CreateMul(rows, i64(w.item_results));
    emit_loop(b_, "block", i64(0), i64(w.blocks()), [&](Value* n) {
        Value* start = b_.CreateMul(n, i64(w.tile_rows));
        const RowBlock block{
            start, select_min(b_.CreateAdd(start, i64(w.tile_rows)), i64(w.all_tile_rows()))};
        if (w.keeps_points())
            if_then(is_fresh, [&] { form_tiles(block, first_channel, true); });
        else
            form_tiles(block, first_channel, true);
        form_tiles(block, first_row, false);
        multiply_planes(block, b_.CreateICmpNE(n, i64(0)));
    });
    Value* sums = bytes_at(scratch_, d_.scratch.winograd_sums);
    Value* taps = bytes_at(scratch_, d_.scratch.panel);
    emit_loop(b_, "panel", i64(0), i64(w.item_channels), i64(columns()), {},
              [&](Value* column, const std::vector<Value*>&) {
                  Value* first_column = b_.CreateAdd(first_channel, column);
                  Value* odd = b_.CreateCall(winograd_taps(module_, gradient_shape()),
                                             {at(element_, sums, column), i64(w.sum_plane()),
                                              i64(w.item_channels), i64(w.item_results), taps});
                  if_then(odd, [&] { plain_taps(first_row, first_column, taps); });
                  emit_loop(b_, "tap", i64(0), i64(kWinogradTaps), [&](Value* tap) {
                      Value* from = b_.CreateMul(tap, i64(w.item_results * columns()));
                      Value* of_tap =
                          b_.CreateAdd(b_.CreateMul(tap, i64(w.channels)), first_column);
                      call(epilogue_, {i64(0), first_row, i64(w.item_results), of_tap,
                                       i64(columns()), at(element_, taps, from)});
                  });
                  return std::vector<Value*>{};
              });
}

}  // namespace ingot::codegen
