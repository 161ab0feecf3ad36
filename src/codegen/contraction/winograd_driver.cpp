// The driver's part for convolutions by minimal filtering. See winograd.h, emitter.h and, for what
// surrounds it, contraction.cpp.
//
// A block is some rows of tiles. Its points are brought into their form when it begins; then each
// panel of the right side brings its taps into theirs, which lie in the second cache, and passes
// over the block plane by plane. Where a row's results are not all finite it is computed again by
// plain products (sums of infinite points, or of finite ones that are too large, are no results),
// and so where a point is so much larger than others that what it adds to theirs, and should
// cancel, does not.
#include "codegen/contraction/emitter.h"
#include "codegen/contraction/ir_loop.h"
#include "codegen/contraction/winograd_kernel.h"

namespace ingot::codegen {

using llvm::Value;

/// Sums over few channels at a time: what the form loses of an element's bits, short chains regain.
TileShape ContractionEmitter::winograd_shape() const {
    TileShape tile = shape(d_.winograd->height, d_.plan.tile.vectors);
    tile.sum_block = kFewRowsSumBlock;
    tile.ahead = false;
    return tile;
}

/// f(buffers, sizes, error, row of tiles, table, zero): pointers to the points that a row of tiles
/// reads, four rows; zeros outside of the image and of what its results read.
llvm::Function* ContractionEmitter::tile_points_function() {
    auto* ptr = b_.getPtrTy();
    llvm::Function* f =
        begin_function(prefix_ + "_points", {ptr, ptr, ptr, b_.getInt64Ty(), ptr, ptr}, false);
    buffers_.error = error_argument_ = f->getArg(2);
    const Winograd& w = *d_.winograd;
    bind_loops(b_, first_of_tiles(f->getArg(3)), c_.m, symbols_);
    for (const Loop& l : c_.k) symbols_[l.var.node()] = i64(0);
    Value*& down = symbols_[c_.m[c_.m.size() - 2].var.node()];
    Value*& across = symbols_[c_.m.back().var.node()];
    Value* first_down = down;
    Value* zero = f->getArg(5);
    emit_loop(b_, "row", i64(0), i64(4), [&](Value* row) {
        emit_loop(b_, "point", i64(0), i64(w.points()), [&](Value* column) {
            down = b_.CreateAdd(first_down, row);
            across = column;
            Value* read = b_.CreateAnd(b_.CreateICmpSLT(down, i64(w.image.height + 2)),
                                       b_.CreateICmpSLT(across, i64(w.image.width + 2)));
            if (d_.plan.a.mask != kNone) {
                PointEmitter point(b_, target_, buffers_, c_.round_intermediates);
                point.symbols = symbols_;
                read = b_.CreateAnd(read, point.emit_one(c_.a_insts, d_.plan.a.mask));
            }
            Value* from = at(operand_type(), pointer(d_.plan.a.buffer), expr(d_.plan.a.offset));
            Value* place = b_.CreateAdd(b_.CreateMul(row, i64(w.points())), column);
            b_.CreateStore(b_.CreateSelect(read, from, zero), at(ptr, f->getArg(4), place));
        });
    });
    b_.CreateRetVoid();
    return f;
}

/// The first result of a row of tiles.
Value* ContractionEmitter::first_of_tiles(Value* tile_row) {
    const Winograd& w = *d_.winograd;
    Value* image = b_.CreateUDiv(tile_row, i64(w.down()));
    Value* row = b_.CreateMul(b_.CreateURem(tile_row, i64(w.down())), i64(2));
    row = b_.CreateAdd(row, b_.CreateMul(image, i64(w.image.height)));
    return b_.CreateMul(row, i64(w.image.width));
}

/// Where the tiles of a block lie in the first plane, which is the same for all blocks.
void ContractionEmitter::find_tiles() {
    Value* tiles = bytes_at(scratch_, d_.scratch.winograd_input);
    Value* table = bytes_at(scratch_, d_.scratch.winograd_table);
    emit_loop(b_, "place", i64(0), i64(d_.winograd->tiles()), [&](Value* n) {
        Value* tile = at(element_, tiles, b_.CreateMul(n, i64(d_.winograd->pitch())));
        b_.CreateStore(tile, at(b_.getPtrTy(), table, n));
    });
}

ContractionEmitter::RowBlock ContractionEmitter::tile_rows_of(Value* block) {
    const Winograd& w = *d_.winograd;
    Value* first = b_.CreateMul(block, i64(w.tile_rows));
    return {first, select_min(b_.CreateAdd(first, i64(w.tile_rows)), i64(w.all_tile_rows()))};
}

void ContractionEmitter::prepare_tiles(const RowBlock& block) {
    const Winograd& w = *d_.winograd;
    Value* table = bytes_at(scratch_, d_.scratch.table);
    Value* zero = bytes_at(scratch_, d_.scratch.zero);
    llvm::Function* input = winograd_input(module_, winograd_shape());
    emit_loop(b_, "row", block.start, block.end, [&](Value* row) {
        call(fill_points_, {row, table, zero});
        Value* tile = b_.CreateMul(b_.CreateSub(row, block.start), i64(w.across()));
        Value* out = at(element_, bytes_at(scratch_, d_.scratch.winograd_input),
                        b_.CreateMul(tile, i64(w.pitch())));
        Value* rough =
            b_.CreateCall(input, {table, i64(w.points()), i64(w.across()), i64(w.image.channels),
                                  out, i64(w.pitch()), i64(w.plane())});
        b_.CreateStore(b_.CreateZExt(rough, b_.getInt8Ty()), rough_flag(block, row));
    });
}

/// Whether a row of tiles wants plain products, whatever its results.
Value* ContractionEmitter::rough_flag(const RowBlock& block, Value* row) {
    return at(b_.getInt8Ty(), bytes_at(scratch_, d_.scratch.winograd_rough),
              b_.CreateSub(row, block.start));
}

/// One panel's products with all of a block.
void ContractionEmitter::filter_tiles(Value* batch, const RowBlock& block, Value* panel_index) {
    const Winograd& w = *d_.winograd;
    const TileShape tile = winograd_shape();
    Value* first_column = b_.CreateMul(panel_index, i64(columns()));
    Value* count = select_min(b_.CreateSub(expr(d_.plan.n), first_column), i64(columns()));
    Value* weights = bytes_at(scratch_, d_.scratch.winograd_weights);
    Value* sums = bytes_at(scratch_, d_.scratch.winograd_sums);
    const auto ordered = [&] {
        return panel(batch, panel_index, first_column, count, bytes_at(scratch_, d_.scratch.panel))
            .address;
    };
    Value* from =
        w.taps ? at(element_, first_of_b(batch), b_.CreateMul(first_column, i64(w.taps->column())))
               : ordered();
    const TapsInPlace taps =
        w.taps.value_or(TapsInPlace{.channel = columns(), .tap = w.image.channels * columns()});
    llvm::Function* form =
        taps.interleaved ? winograd_interleaved(module_, tile) : winograd_weights(module_, tile);

    Value* tiles = b_.CreateMul(b_.CreateSub(block.end, block.start), i64(w.across()));
    Value* tap_plane = i64(w.tap_plane(columns()));
    const std::int64_t sum_plane = w.sum_plane(columns());
    llvm::Function* kernel = rows_kernel(module_, tile, columns());
    const auto part = [&](Value* first_channel, const std::vector<Value*>&) {
        Value* length = select_min(b_.CreateSub(i64(w.image.channels), first_channel),
                                   i64(w.channels_at_a_time()));
        Value* of_part = at(element_, from, b_.CreateMul(first_channel, i64(taps.channel)));
        b_.CreateCall(form,
                      {of_part, length, i64(taps.channel), i64(taps.tap), weights, tap_plane});
        Value* add = b_.CreateICmpNE(first_channel, i64(0));
        emit_loop(b_, "plane", i64(0), i64(kWinogradPlanes), [&](Value* n) {
            Value* shift = b_.CreateAdd(b_.CreateMul(n, i64(w.plane())), first_channel);
            shift = b_.CreateMul(shift, i64(bytes(d_.dtype)));
            Value* of_plane = at(element_, weights, b_.CreateMul(n, tap_plane));
            Value* plane_sums = at(element_, sums, b_.CreateMul(n, i64(sum_plane)));
            emit_loop(b_, "tiles", i64(0), tiles, i64(w.height), {},
                      [&](Value* first, const std::vector<Value*>&) {
                          Value* table = at(b_.getPtrTy(),
                                            bytes_at(scratch_, d_.scratch.winograd_table), first);
                          Value* c = at(element_, plane_sums, b_.CreateMul(first, i64(columns())));
                          b_.CreateCall(kernel, {table, i64(1), length, of_plane, i64(columns()), c,
                                                 i64(columns()), add, shift, c, i64(0)});
                          return std::vector<Value*>{};
                      });
        });
        return std::vector<Value*>{};
    };
    emit_loop(b_, "channels", i64(0), i64(w.image.channels), i64(w.channels_at_a_time()), {}, part);

    // Two rows of results for each row of tiles.
    Value* results = bytes_at(scratch_, d_.scratch.winograd_results);
    const std::int64_t result_row = 2 * w.across() * columns();
    emit_loop(b_, "row", block.start, block.end, [&](Value* row) {
        Value* begins = b_.CreateMul(b_.CreateSub(row, block.start), i64(w.across() * columns()));
        Value* odd = b_.CreateCall(winograd_output(module_, tile),
                                   {at(element_, sums, begins), i64(sum_plane), i64(w.across()),
                                    results, i64(result_row)});
        Value* rough = b_.CreateLoad(b_.getInt8Ty(), rough_flag(block, row));
        odd = b_.CreateOr(odd, b_.CreateICmpNE(rough, b_.getInt8(0)));
        Value* down = b_.CreateMul(b_.CreateURem(row, i64(w.down())), i64(2));
        Value* rows = select_min(b_.CreateSub(i64(w.image.height), down), i64(2));
        Value* first = first_of_tiles(row);
        emit_loop(b_, "half", i64(0), rows, [&](Value* n) {
            Value* from = b_.CreateAdd(first, b_.CreateMul(n, i64(w.image.width)));
            Value* of_row = at(element_, results, b_.CreateMul(n, i64(result_row)));
            if_then(odd, [&] { plain_row(batch, from, ordered(), of_row); });
            call(epilogue_, {batch, from, i64(w.image.width), first_column, count, of_row});
        });
    });
}

/// The sums of an image's row from result `first` on, by plain products.
void ContractionEmitter::plain_row(Value* batch, Value* first, Value* right, Value* out) {
    Value* table = bytes_at(scratch_, d_.scratch.table);
    llvm::Function* kernel = rows_kernel(module_, shape(1, d_.plan.tile.vectors), columns());
    emit_loop(b_, "plain", i64(0), i64(d_.winograd->image.width), [&](Value* n) {
        call(fill_a_,
             {batch, b_.CreateAdd(first, n), i64(1), table, bytes_at(scratch_, d_.scratch.zero)});
        Value* c = at(element_, out, b_.CreateMul(n, i64(columns())));
        b_.CreateCall(
            kernel, {table, expr(d_.plan.a.segments), expr(d_.plan.a.run), right, i64(columns()), c,
                     i64(columns()), b_.getFalse(), i64(0), right, i64(0)});
    });
}

}  // namespace ingot::codegen
