// The driver of products on matrix units: tile registers, A's rows and a group of panels. See
// emitter.h, matrix_kernel.h (bf16) and split_kernel.h (f32 as three bf16).
#include <llvm/IR/IntrinsicsX86.h>

#include <array>

#include "codegen/contraction/emitter.h"
#include "codegen/contraction/ir_loop.h"
#include "codegen/contraction/matrix_kernel.h"
#include "codegen/contraction/split_kernel.h"

namespace ingot::codegen {

using llvm::Value;

/// The tile registers hold 16 rows of 64 bytes each.
void ContractionEmitter::configure_tiles() {
    std::array<std::uint8_t, kTileShapeBytes> shapes{};
    shapes[0] = 1;  // palette
    for (std::size_t n = 0; n < 8; ++n) {
        shapes[16 + 2 * n] = 64;  // bytes of a row
        shapes[48 + n] = 16;      // rows
    }
    Value* place = bytes_at(scratch_, d_.scratch.tile_shapes);
    b_.CreateAlignedStore(llvm::ConstantDataVector::get(b_.getContext(), shapes), place,
                          llvm::Align(64));
    b_.CreateIntrinsic(llvm::Intrinsic::x86_ldtilecfg, {}, {place});
}

/// Where the splitters note what they see: of each half tile of rows, then of each panel.
Value* ContractionEmitter::extremes_of_rows(Value* local) {
    constexpr std::int64_t kHalf = kMatrixRows / 2;
    Value* place = b_.CreateMul(b_.CreateUDiv(local, i64(kHalf)), i64(sizeof(Extremes)));
    return at(b_.getInt8Ty(), bytes_at(scratch_, d_.scratch.extremes), place);
}

Value* ContractionEmitter::extremes_of_panel(Value* n_th) {
    return at(b_.getInt8Ty(), extremes_of_rows(i64(d_.most_rows)),
              b_.CreateMul(n_th, i64(sizeof(Extremes))));
}

/// Nothing has been seen.
void ContractionEmitter::forget(Value* extremes) {
    const Extremes none;
    const std::array<std::uint32_t, 2> words{none.smallest, none.largest};
    b_.CreateAlignedStore(llvm::ConstantDataVector::get(b_.getContext(), words), extremes,
                          llvm::Align(4));
}

/// A tile's rows of A in the units' order.
void ContractionEmitter::matrix_rows(Value* batch, int height, Value* row, Value* local) {
    Value* zero = bytes_at(scratch_, d_.scratch.zero);
    Value* table = bytes_at(scratch_, d_.scratch.table);
    Value* rows = bytes_at(scratch_, d_.scratch.a_rows);
    Value* k = expr(d_.plan.k);
    Value* out = at(b_.getInt8Ty(), bytes_at(scratch_, d_.scratch.a_packed),
                    b_.CreateMul(local, expr(d_.matrix_k() * Expr(d_.matrix_bytes()))));
    Value* segments = expr(d_.plan.a.segments);
    Value* run = units(d_.plan.a.run);
    auto fill_table = [&] { call(fill_a_, {batch, row, i64(height), table, zero}); };
    if (!d_.plan.split()) {
        fill_table();
        b_.CreateCall(codegen::matrix_rows(module_), {table, segments, run, i64(height), out});
        return;
    }
    Value* seen = extremes_of_rows(local);
    forget(seen);
    if (d_.plan.a.form == OperandForm::Computed) {
        compute_rows(batch, row, height, k);
        b_.CreateCall(row_splitter(module_), {table, i64(1), k, i64(height), out, seen});
        return;
    }
    fill_table();
    if (d_.matrix_runs) {
        b_.CreateCall(row_splitter(module_), {table, segments, run, i64(height), out, seen});
        return;
    }
    b_.CreateCall(row_packer(module_, element_),
                  {table, segments, run, expr(d_.plan.a.step), i64(height), rows, zero});
    b_.CreateCall(column_splitter(module_), {rows, k, i64(height), out, seen});
}

/// A group of panels against all rows of the block, a part of k at a time: a panel's part is
/// brought into order and used from the first cache, while the next panel's is fetched.
void ContractionEmitter::matrix_tiles(Value* batch, Value* start, Value* end, Value* group) {
    Value* k = expr(d_.plan.k);
    Value* n = expr(d_.plan.n);
    Value* all_panels = b_.CreateUDiv(b_.CreateAdd(n, i64(columns() - 1)), i64(columns()));
    Value* first = b_.CreateMul(group, i64(d_.group));
    Value* panels = select_min(b_.CreateSub(all_panels, first), i64(d_.group));
    Value* right_part = bytes_at(scratch_, d_.scratch.b_part);
    Value* a_packed = bytes_at(scratch_, d_.scratch.a_packed);
    Value* ordered = bytes_at(scratch_, d_.scratch.panel);
    Value* row_bytes = expr(d_.matrix_k() * Expr(d_.matrix_bytes()));
    Value* panel_floats = b_.CreateMul(units(d_.plan.k), i64(columns()));
    auto column = [&](Value* n_th) {
        return b_.CreateMul(b_.CreateAdd(first, n_th), i64(columns()));
    };
    auto column_count = [&](Value* at_column) {
        return select_min(b_.CreateSub(n, at_column), i64(columns()));
    };
    const std::int64_t element_bytes = d_.plan.pairs ? 2 : 4;  // of B
    const bool whole = d_.plan.b.form == OperandForm::Panels;
    const bool in_place = d_.plan.b.form == OperandForm::Columns;
    // Where a panel lies that is in order already, or has been brought into it below.
    auto right = [&](Value* n_th) -> PanelValue {
        if (!whole && !in_place)
            return {at(element_, ordered, b_.CreateMul(n_th, panel_floats)), i64(columns())};
        Value* first_column = column(n_th);
        if (whole)
            return panel(batch, b_.CreateAdd(first, n_th), first_column, column_count(first_column),
                         ordered);
        const PanelValue lies = columns_in_place(batch, first_column);
        Value* partial = b_.CreateICmpSLT(column_count(first_column), i64(columns()));
        return {b_.CreateSelect(partial, ordered, lies.address),
                b_.CreateSelect(partial, i64(columns()), lies.distance)};
    };
    if (!whole)
        emit_loop(b_, "order", i64(0), panels, [&](Value* n_th) {
            Value* first_column = column(n_th);
            // Of panels that are read in place only the last may be copied.
            Value* out =
                in_place ? ordered : at(element_, ordered, b_.CreateMul(n_th, panel_floats));
            panel(batch, b_.CreateAdd(first, n_th), first_column, column_count(first_column), out);
        });
    constexpr std::int64_t kLine = 64;
    Value* block_rows = round_up(b_.CreateSub(end, start), d_.heights.back());
    Value* sums_floats = b_.CreateMul(block_rows, i64(columns()));
    // The next part of a panel is fetched during the products. With few rows of split products so
    // many fetches at a time hold the buffers that rows of A need on their way from the second
    // cache: then only the splitter fetches (measured at four tiles of rows and at seven).
    Value* lines = i64(0);
    if (looks_ahead()) {
        const std::int64_t step_lines = kMatrixStep * kMatrixColumns * element_bytes / kLine;
        const std::int64_t fewest_tiles = d_.plan.split() ? 6 : 1;
        Value* tile_count = b_.CreateUDiv(round_up(block_rows, kMatrixRows), i64(kMatrixRows));
        lines = b_.CreateSelect(
            b_.CreateICmpUGE(tile_count, i64(fewest_tiles)),
            b_.CreateUDiv(b_.CreateAdd(i64(step_lines - 1), tile_count), tile_count), i64(0));
    }
    auto part_of_panel = [&](Value* from, Value* n_th) {
        const PanelValue of_panel = right(n_th);
        Value* left = b_.CreateSub(k, from);
        Value* length = select_min(left, i64(d_.block_k));
        Value* is_last = b_.CreateICmpSLE(left, i64(d_.block_k));
        Value* steps = b_.CreateUDiv(b_.CreateAdd(length, i64(kMatrixStep - 1)), i64(kMatrixStep));
        Value* row_bytes_of_b = b_.CreateMul(of_panel.distance, i64(element_bytes));
        Value* part = at(b_.getInt8Ty(), of_panel.address, b_.CreateMul(from, row_bytes_of_b));
        Value* ordered_part = right_part;
        if (d_.plan.split()) {
            Value* seen = extremes_of_panel(n_th);
            if_then(b_.CreateICmpEQ(from, i64(0)), [&] { forget(seen); });
            b_.CreateCall(panel_splitter(module_),
                          {part, of_panel.distance, length, right_part, seen});
        } else if (d_.plan.b.form == OperandForm::Runs) {
            ordered_part = part;
        } else {
            b_.CreateCall(matrix_panel(module_), {part, of_panel.distance, length, right_part});
        }
        Value* ahead = part;
        if (looks_ahead()) {
            // The next panel's same part, the first panel's next part, or simply what follows.
            Value* panel_bytes = b_.CreateMul(panel_floats, i64(4));
            Value* is_last_panel = b_.CreateICmpEQ(b_.CreateAdd(n_th, i64(1)), panels);
            Value* back = b_.CreateMul(n_th, panel_bytes);
            Value* part_bytes = b_.CreateMul(length, row_bytes_of_b);
            Value* next_part = b_.CreateSub(part_bytes, back);
            ahead = at(b_.getInt8Ty(), part,
                       d_.plan.split() ? b_.CreateSelect(is_last_panel, next_part, panel_bytes)
                                       : part_bytes);
        }
        Value* share = b_.CreateMul(b_.CreateMul(lines, steps), i64(kLine));
        Value* first_column = column(n_th);
        Value* count = column_count(first_column);
        Value* of_sums =
            d_.plan.split() ? at(element_, scratch_, b_.CreateMul(n_th, sums_floats)) : scratch_;
        for_tiles(start, end, [&](int height, Value* row, Value* local) {
            Value* a = at(b_.getInt8Ty(), a_packed, b_.CreateMul(local, row_bytes));
            Value* a_part =
                at(b_.getInt8Ty(), a, b_.CreateMul(from, i64(height * d_.matrix_bytes())));
            Value* sums = at(element_, of_sums, b_.CreateMul(local, i64(columns())));
            Value* next = at(b_.getInt8Ty(), ahead,
                             b_.CreateMul(b_.CreateUDiv(local, i64(kMatrixRows)), share));
            Value* add = b_.CreateICmpNE(from, i64(0));
            if (d_.plan.split())
                b_.CreateCall(split_kernel(module_, height),
                              {a_part, steps, ordered_part, sums,
                               bytes_at(scratch_, d_.scratch.room), add, next, lines});
            else
                b_.CreateCall(matrix_kernel(module_, height),
                              {a_part, steps, ordered_part, sums, add, next, lines});
            if_then(is_last, [&] {
                Value* rows = select_min(b_.CreateSub(end, row), i64(height));
                const std::vector<Value*> tile{
                    sums, rows, a, i64(height), of_panel.address, of_panel.distance, k};
                if (d_.plan.split())
                    if_then(
                        b_.CreateCall(split_check(module_), {sums, rows, k, extremes_of_rows(local),
                                                             extremes_of_panel(n_th)}),
                        [&] { b_.CreateCall(split_repair(module_), tile); });
                call(epilogue_, {batch, row, rows, first_column, count, sums});
            });
        });
    };
    // Without any k the sums are zero, not left out.
    Value* end_of_k = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, k, i64(1));
    const std::vector<Value*> none;
    auto for_parts = [&](const auto& body) {
        emit_loop(b_, "part", i64(0), end_of_k, i64(d_.block_k), {},
                  [&](Value* from, const std::vector<Value*>&) {
                      body(from);
                      return none;
                  });
    };
    auto for_panels = [&](const auto& body) { emit_loop(b_, "panel", i64(0), panels, body); };
    if (d_.plan.split())
        for_parts([&](Value* from) { for_panels([&](Value* n) { part_of_panel(from, n); }); });
    else
        for_panels([&](Value* n) { for_parts([&](Value* from) { part_of_panel(from, n); }); });
}

}  // namespace ingot::codegen
