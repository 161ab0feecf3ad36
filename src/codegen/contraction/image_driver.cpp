// The driver's part for images whose points are split once for all taps. See image_rows.h,
// emitter.h and, for what surrounds it, matrix_driver.cpp.
#include "codegen/contraction/emitter.h"
#include "codegen/contraction/ir_loop.h"
#include "codegen/contraction/matrix_kernel.h"
#include "codegen/contraction/split_kernel.h"

namespace ingot::codegen {

using llvm::Value;

/// f(buffers, sizes, error, first, rows, table, zero): pointers to the points of so many image rows
/// from that of result `first` on, with the border's, which are zeros, and to zeros behind them.
llvm::Function* ContractionEmitter::image_table_function() {
    auto* ptr = b_.getPtrTy();
    auto* word = b_.getInt64Ty();
    llvm::Function* f =
        begin_function(prefix_ + "_image", {ptr, ptr, ptr, word, word, ptr, ptr}, false);
    buffers_.error = error_argument_ = f->getArg(2);
    const ImageRows& image = *d_.image;
    bind_loops(b_, f->getArg(3), c_.m, symbols_);
    for (const Loop& l : c_.k) symbols_[l.var.node()] = i64(0);
    Value*& down = symbols_[c_.m[c_.m.size() - 2].var.node()];
    Value*& across = symbols_[c_.m.back().var.node()];
    Value* first_down = down;
    Value* table = f->getArg(5);
    Value* zero = f->getArg(6);
    emit_loop(b_, "row", i64(0), f->getArg(4), [&](Value* row) {
        emit_loop(b_, "point", i64(0), i64(image.pitch()), [&](Value* column) {
            down = b_.CreateAdd(first_down, row);
            across = column;
            Value* from = at(operand_type(), pointer(d_.plan.a.buffer), expr(d_.plan.a.offset));
            if (d_.plan.a.mask != kNone) {
                PointEmitter point(b_, target_, buffers_, c_.round_intermediates);
                point.symbols = symbols_;
                from = b_.CreateSelect(point.emit_one(c_.a_insts, d_.plan.a.mask), from, zero);
            }
            Value* place = b_.CreateAdd(b_.CreateMul(row, i64(image.pitch())), column);
            b_.CreateStore(from, at(ptr, table, place));
        });
    });
    emit_loop(b_, "behind", b_.CreateMul(f->getArg(4), i64(image.pitch())), i64(image.points()),
              [&](Value* n) { b_.CreateStore(zero, at(ptr, table, n)); });
    b_.CreateRetVoid();
    return f;
}

/// Where the points of each step of k begin, which is the same in all blocks.
void ContractionEmitter::find_image_steps() {
    const ImageRows& image = *d_.image;
    const std::int64_t steps = image.channels / kMatrixStep;
    Value* points = bytes_at(scratch_, d_.scratch.image);
    Value* table = bytes_at(scratch_, d_.scratch.image_steps);
    emit_loop(b_, "tap", i64(0), i64(image.taps()), [&](Value* tap) {
        Value* down = b_.CreateUDiv(tap, i64(image.taps_across));
        Value* across = b_.CreateURem(tap, i64(image.taps_across));
        Value* point = b_.CreateAdd(b_.CreateMul(down, i64(image.pitch())), across);
        emit_loop(b_, "step", i64(0), i64(steps), [&](Value* step) {
            Value* line = b_.CreateAdd(b_.CreateMul(step, i64(3 * image.points())), point);
            Value* place = b_.CreateAdd(b_.CreateMul(tap, i64(steps)), step);
            b_.CreateStore(at(b_.getInt8Ty(), points, b_.CreateMul(line, i64(kPointLine))),
                           at(b_.getPtrTy(), table, place));
        });
    });
}

/// Which rows of which image a block has.
ContractionEmitter::RowBlock ContractionEmitter::image_block(Value* block) {
    const ImageRows& image = *d_.image;
    Value* image_index = b_.CreateUDiv(block, i64(image.blocks_of_image()));
    Value* first =
        b_.CreateMul(b_.CreateURem(block, i64(image.blocks_of_image())), i64(image.block));
    Value* rows = select_min(b_.CreateSub(i64(image.height), first), i64(image.block));
    Value* row = b_.CreateAdd(b_.CreateMul(image_index, i64(image.height)), first);
    Value* span = b_.CreateAdd(b_.CreateMul(b_.CreateSub(rows, i64(1)), i64(image.pitch())),
                               i64(image.width));
    return {i64(0), span, b_.CreateMul(row, i64(image.width)), rows};
}

void ContractionEmitter::prepare_image(const RowBlock& block) {
    const ImageRows& image = *d_.image;
    Value* table = bytes_at(scratch_, d_.scratch.table);
    Value* rows = b_.CreateAdd(block.image_rows, i64(image.taps_down - 1));
    call(fill_a_, {block.first_result, rows, table, bytes_at(scratch_, d_.scratch.zero)});
    Value* seen = extremes_of_rows(i64(0));
    forget(seen);
    b_.CreateCall(row_splitter(module_), {table, i64(1), i64(image.channels), i64(image.points()),
                                          bytes_at(scratch_, d_.scratch.image), seen});
}

/// A tile's rows of A in the order that products without windows have, for repairs.
Value* ContractionEmitter::image_tile(Value* local, int height) {
    Value* out = bytes_at(scratch_, d_.scratch.a_packed);
    Value* steps = b_.CreateUDiv(expr(d_.plan.k), i64(kMatrixStep));
    const std::int64_t part_bytes = height * kPointLine;
    emit_loop(b_, "step", i64(0), steps, [&](Value* step) {
        Value* entry = at(b_.getPtrTy(), bytes_at(scratch_, d_.scratch.image_steps), step);
        Value* from = at(b_.getInt8Ty(), b_.CreateLoad(b_.getPtrTy(), entry),
                         b_.CreateMul(local, i64(kPointLine)));
        for (std::int64_t part = 0; part < 3; ++part) {
            Value* to =
                b_.CreateAdd(b_.CreateMul(step, i64(3 * part_bytes)), i64(part * part_bytes));
            b_.CreateMemCpy(at(b_.getInt8Ty(), out, to), llvm::MaybeAlign(kPointLine),
                            at(b_.getInt8Ty(), from, i64(part * d_.image->points() * kPointLine)),
                            llvm::MaybeAlign(kPointLine), i64(part_bytes));
        }
    });
    return out;
}

/// The epilogue of those rows of a tile that are results: a run for each row of the image.
void ContractionEmitter::image_epilogue(const PanelGroup& group, const PanelPart& part,
                                        const Tile& tile) {
    const ImageRows& image = *d_.image;
    Value* end = b_.CreateAdd(tile.local, tile.rows);
    Value* first = b_.CreateUDiv(tile.local, i64(image.pitch()));
    Value* last = b_.CreateUDiv(b_.CreateSub(end, i64(1)), i64(image.pitch()));
    emit_loop(b_, "run", first, b_.CreateAdd(last, i64(1)), [&](Value* row) {
        Value* begins = b_.CreateMul(row, i64(image.pitch()));
        Value* from = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, tile.local, begins);
        Value* to = select_min(end, b_.CreateAdd(begins, i64(image.width)));
        if_then(b_.CreateICmpSLT(from, to), [&] {
            Value* result = b_.CreateAdd(group.first_result, b_.CreateMul(row, i64(image.width)));
            result = b_.CreateAdd(result, b_.CreateSub(from, begins));
            Value* skipped = b_.CreateMul(b_.CreateSub(from, tile.local), i64(columns()));
            call(epilogue_, {group.batch, result, b_.CreateSub(to, from), part.first_column,
                             part.count, at(element_, tile.sums, skipped)});
        });
    });
}

}  // namespace ingot::codegen
