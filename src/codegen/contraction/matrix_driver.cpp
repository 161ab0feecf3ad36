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
    if (d_.image) local = i64(0);  // of all points
    Value* place = b_.CreateMul(b_.CreateUDiv(local, i64(kHalf)), i64(sizeof(Extremes)));
    return at(b_.getInt8Ty(), bytes_at(scratch_, d_.scratch.extremes), place);
}

Value* ContractionEmitter::extremes_of_panel(Value* n_th) {
    Value* behind_rows = i64(d_.most_rows / (kMatrixRows / 2));
    return at(b_.getInt8Ty(), bytes_at(scratch_, d_.scratch.extremes),
              b_.CreateMul(b_.CreateAdd(behind_rows, n_th), i64(sizeof(Extremes))));
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
    if (d_.a_side_by_side) {
        Value* first = b_.CreateLoad(b_.getPtrTy(), table);
        Value* exist = select_min(b_.CreateSub(expr(d_.plan.m), row), i64(height));
        b_.CreateCall(column_splitter(module_),
                      {first, expr(d_.plan.a.step), k, i64(height), exist, out, seen});
        return;
    }
    b_.CreateCall(row_packer(module_, element_),
                  {table, segments, run, expr(d_.plan.a.step), i64(height), rows, zero});
    b_.CreateCall(column_splitter(module_),
                  {rows, i64(height), k, i64(height), i64(height), out, seen});
}

Value* ContractionEmitter::column_of(const PanelGroup& group, Value* n_th) {
    return b_.CreateMul(b_.CreateAdd(group.first, n_th), i64(columns()));
}

/// How many columns a panel has that begins at `column`.
Value* ContractionEmitter::columns_from(Value* column) {
    return select_min(b_.CreateSub(expr(d_.plan.n), column), i64(columns()));
}

/// The table of a panel whose columns are taken where they lie.
Value* ContractionEmitter::table_of(Value* n_th) {
    Value* place = b_.CreateMul(b_.CreateAdd(n_th, i64(1)), i64(columns()));
    return at(b_.getPtrTy(), bytes_at(scratch_, d_.scratch.b_table), place);
}

/// Fills the table of B's rows that a part of k begins with.
void ContractionEmitter::find_points(const PanelGroup& group, Value* from) {
    call(fill_points_, {group.batch, from, i64(d_.block_k + kMatrixStep),
                        bytes_at(scratch_, d_.scratch.b_points)});
}

/// How many elements a panel's first column lies behind column 0, at any k.
Value* ContractionEmitter::column_among_neighbours(Value* batch, Value* first_column) {
    SymbolValues at_column = symbols_;
    bind_loops(b_, batch, c_.batch, at_column);
    for (const Loop& l : c_.k) at_column[l.var.node()] = i64(0);
    SymbolValues at_zero = at_column;
    bind_loops(b_, first_column, c_.n, at_column);
    for (const Loop& l : c_.n) at_zero[l.var.node()] = i64(0);
    return b_.CreateSub(emit_expr(b_, d_.plan.b.offset, at_column),
                        emit_expr(b_, d_.plan.b.offset, at_zero));
}

/// Brings into order, or finds, what is not taken where it lies.
void ContractionEmitter::order_panels(const PanelGroup& group) {
    if (d_.plan.b.form == OperandForm::Panels || d_.b_by_points) return;
    Value* panel_floats = b_.CreateMul(units(d_.plan.k), i64(columns()));
    emit_loop(b_, "order", i64(0), group.panels, [&](Value* n_th) {
        Value* column = column_of(group, n_th);
        if (d_.b_by_rows) {
            call(fill_b_, {group.batch, column, i64(columns()), table_of(n_th),
                           bytes_at(scratch_, d_.scratch.zero)});
            return;
        }
        // Of panels that are read in place only the last may be copied.
        Value* out = d_.b_in_place ? group.ordered
                                   : at(element_, group.ordered, b_.CreateMul(n_th, panel_floats));
        panel(group.batch, b_.CreateAdd(group.first, n_th), column, columns_from(column), out);
    });
}

/// Where a panel lies that is in order already, or has been brought into it by order_panels.
ContractionEmitter::PanelValue ContractionEmitter::ordered_panel(const PanelGroup& group,
                                                                 Value* n_th) {
    Value* first_column = column_of(group, n_th);
    if (d_.b_as_it_lies()) return {group.ordered, i64(columns())};
    if (d_.plan.b.form == OperandForm::Panels)
        return panel(group.batch, b_.CreateAdd(group.first, n_th), first_column,
                     columns_from(first_column), group.ordered);
    if (!d_.b_in_place) {
        Value* panel_floats = b_.CreateMul(units(d_.plan.k), i64(columns()));
        return {at(element_, group.ordered, b_.CreateMul(n_th, panel_floats)), i64(columns())};
    }
    const PanelValue lies = columns_in_place(group.batch, first_column);
    Value* partial = b_.CreateICmpSLT(columns_from(first_column), i64(columns()));
    return {b_.CreateSelect(partial, group.ordered, lies.address),
            b_.CreateSelect(partial, i64(columns()), lies.distance)};
}

/// The part that comes next, fetched by all tiles together: the next panel's of the same k, after
/// the last the first one's next; where a panel passes all k at once simply what follows. With few
/// rows of split products so many fetches at a time hold the buffers that rows of A need on their
/// way from the second cache: then only the splitter fetches (measured at four tiles of rows and at
/// seven).
ContractionEmitter::Ahead ContractionEmitter::fetched_ahead(const PanelGroup& group,
                                                            const PanelPart& part) {
    constexpr std::int64_t kPair = 128, kFewestTiles = 6;
    const Ahead nothing{part.panel.address, i64(0), i64(0), i64(0), i64(0)};
    const bool split = d_.plan.split();
    Value* tiles = b_.CreateUDiv(round_up(group.block_rows, kMatrixRows), i64(kMatrixRows));
    auto shared = [&](std::int64_t pairs) {
        Value* each = b_.CreateUDiv(b_.CreateAdd(i64(pairs - 1), tiles), tiles);
        if (!split) return each;
        return b_.CreateSelect(b_.CreateICmpUGE(tiles, i64(kFewestTiles)), each, i64(0));
    };
    Value* is_last = b_.CreateICmpEQ(b_.CreateAdd(part.n_th, i64(1)), group.panels);
    // From here to the next panel, or to the next part of the first.
    auto onwards = [&](Value* panel_bytes, Value* part_bytes) {
        Value* back = b_.CreateMul(part.n_th, panel_bytes);
        return b_.CreateSelect(is_last, b_.CreateSub(part_bytes, back), panel_bytes);
    };
    if (d_.b_by_rows) {
        // A pair of lines of each column, of all steps.
        const auto linear =
            c_.n.size() == 1 ? linear_in(d_.plan.b.offset, c_.n[0].var) : std::nullopt;
        if (!linear) return nothing;
        Value* distance = expr(linear->stride * Expr(bytes(d_.dtype)));
        Value* here = b_.CreateLoad(b_.getPtrTy(), table_of(part.n_th));
        here = at(element_, here, part.from);
        Value* next = onwards(b_.CreateMul(distance, i64(columns())),
                              b_.CreateMul(part.length, i64(bytes(d_.dtype))));
        Value* count = shared(columns());
        return {at(b_.getInt8Ty(), here, next), count, distance, i64(kPair),
                b_.CreateMul(count, distance)};
    }
    const bool panels = d_.plan.b.form == OperandForm::Panels;
    if (!panels && !(split && d_.b_in_place)) return nothing;
    const std::int64_t element_bytes = d_.plan.pairs ? 2 : 4;
    Value* row_bytes = b_.CreateMul(part.panel.distance, i64(element_bytes));
    Value* here = at(b_.getInt8Ty(), part.panel.address, b_.CreateMul(part.from, row_bytes));
    Value* part_bytes = b_.CreateMul(part.length, row_bytes);
    Value* panel_bytes =
        panels ? b_.CreateMul(b_.CreateMul(units(d_.plan.k), i64(columns())), i64(4)) : i64(kPair);
    Value* next = split ? onwards(panel_bytes, part_bytes) : part_bytes;
    // Pairs of lines are rows of the panel, or two rows of bf16. What lies together is fetched in
    // its order.
    const std::int64_t step_pairs = kMatrixStep * kMatrixColumns * element_bytes / kPair;
    Value* count = shared(step_pairs);
    Value* distance = panels ? i64(kPair) : row_bytes;
    Value* step_distance = b_.CreateMul(count, distance);
    return {at(b_.getInt8Ty(), here, next), count, distance, step_distance,
            b_.CreateMul(part.steps, step_distance)};
}

/// The part in the order that the units take.
Value* ContractionEmitter::units_order(const PanelGroup& group, const PanelPart& part) {
    Value* right_part = bytes_at(scratch_, d_.scratch.b_part);
    const std::int64_t element_bytes = d_.plan.pairs ? 2 : 4;
    Value* row_bytes = b_.CreateMul(part.panel.distance, i64(element_bytes));
    Value* lies = at(b_.getInt8Ty(), part.panel.address, b_.CreateMul(part.from, row_bytes));
    if (!d_.plan.split()) {
        if (d_.plan.b.form == OperandForm::Runs) return lies;
        b_.CreateCall(matrix_panel(module_), {lies, part.panel.distance, part.length, right_part});
        return right_part;
    }
    Value* seen = extremes_of_panel(part.n_th);
    if_then(b_.CreateICmpEQ(part.from, i64(0)), [&] { forget(seen); });
    if (d_.b_by_rows)
        b_.CreateCall(panel_row_splitter(module_),
                      {table_of(part.n_th), part.from, part.length, right_part, seen});
    else if (d_.b_by_points)
        b_.CreateCall(panel_point_splitter(module_),
                      {bytes_at(scratch_, d_.scratch.b_points),
                       column_among_neighbours(group.batch, part.first_column), part.length,
                       right_part, seen});
    else
        b_.CreateCall(panel_splitter(module_),
                      {lies, part.panel.distance, part.length, right_part, seen});
    return right_part;
}

/// Computes a finished tile of split products again if parts that matter were lost.
void ContractionEmitter::repair(const PanelGroup& group, const PanelPart& part, const Tile& tile) {
    Value* k = expr(d_.plan.k);
    Value* wrong = b_.CreateCall(
        split_check(module_),
        {tile.sums, tile.rows, k, extremes_of_rows(tile.local), extremes_of_panel(part.n_th)});
    if_then(wrong, [&] {
        if (d_.b_as_it_lies())
            panel(group.batch, b_.CreateAdd(group.first, part.n_th), part.first_column, part.count,
                  group.ordered);
        Value* a = d_.image ? image_tile(tile.local, tile.height) : tile.a;
        b_.CreateCall(split_repair(module_), {tile.sums, tile.rows, a, i64(tile.height),
                                              part.panel.address, part.panel.distance, k});
    });
}

/// One part of k of a panel against all rows of the block.
void ContractionEmitter::part_of_panel(const PanelGroup& group, Value* from, Value* n_th) {
    Value* left = b_.CreateSub(expr(d_.plan.k), from);
    Value* is_last = b_.CreateICmpSLE(left, i64(d_.block_k));
    PanelPart part{};
    part.n_th = n_th;
    part.from = from;
    part.length = select_min(left, i64(d_.block_k));
    part.steps = b_.CreateUDiv(b_.CreateAdd(part.length, i64(kMatrixStep - 1)), i64(kMatrixStep));
    part.first_column = column_of(group, n_th);
    part.count = columns_from(part.first_column);
    part.panel = ordered_panel(group, n_th);
    Value* right = units_order(group, part);
    const Ahead ahead = fetched_ahead(group, part);
    const bool split = d_.plan.split();
    Value* row_bytes = expr(d_.matrix_k() * Expr(d_.matrix_bytes()));
    // Split, the sums of all panels of the group are kept.
    Value* of_sums = scratch_;
    if (split) {
        Value* sums_floats = b_.CreateMul(group.block_rows, i64(columns()));
        of_sums = at(element_, scratch_, b_.CreateMul(n_th, sums_floats));
    }
    for_tiles(group.start, group.end, [&](int height, Value* row, Value* local) {
        Value* a = at(b_.getInt8Ty(), bytes_at(scratch_, d_.scratch.a_packed),
                      b_.CreateMul(local, row_bytes));
        Value* sums = at(element_, of_sums, b_.CreateMul(local, i64(columns())));
        Value* tile_number = b_.CreateUDiv(local, i64(kMatrixRows));
        Value* next =
            at(b_.getInt8Ty(), ahead.next, b_.CreateMul(tile_number, ahead.tile_distance));
        const bool image = d_.image.has_value();
        Value* a_part =
            image ? at(b_.getPtrTy(), bytes_at(scratch_, d_.scratch.image_steps),
                       b_.CreateUDiv(from, i64(kMatrixStep)))
                  : at(b_.getInt8Ty(), a, b_.CreateMul(from, i64(height * d_.matrix_bytes())));
        std::vector<Value*> arguments{a_part, part.steps, right, sums};
        if (split) arguments.push_back(bytes_at(scratch_, d_.scratch.room));
        arguments.insert(arguments.end(), {b_.CreateICmpNE(from, i64(0)), next, ahead.count,
                                           ahead.distance, ahead.step_distance});
        if (image) {
            arguments.push_back(b_.CreateMul(local, i64(kPointLine)));
            arguments.push_back(i64(d_.image->points() * kPointLine));
            b_.CreateCall(split_image_kernel(module_, height), arguments);
        } else {
            b_.CreateCall(split ? split_kernel(module_, height) : matrix_kernel(module_, height),
                          arguments);
        }
        if_then(is_last, [&] {
            Value* rows = select_min(b_.CreateSub(group.end, row), i64(height));
            const Tile tile{sums, rows, a, local, height};
            if (split) repair(group, part, tile);
            if (image)
                image_epilogue(group, part, tile);
            else
                call(epilogue_, {group.batch, row, rows, part.first_column, part.count, sums});
        });
    });
}

/// A group of panels against all rows of the block, a part of k at a time: a panel's part is
/// brought into order and used from the first cache, while the next panel's is fetched.
void ContractionEmitter::matrix_tiles(Value* batch, const RowBlock& block, Value* group_index) {
    Value* all_panels =
        b_.CreateUDiv(b_.CreateAdd(expr(d_.plan.n), i64(columns() - 1)), i64(columns()));
    Value* first = b_.CreateMul(group_index, i64(d_.group));
    const PanelGroup group{
        batch,
        block.start,
        block.end,
        block.first_result,
        first,
        select_min(b_.CreateSub(all_panels, first), i64(d_.group)),
        round_up(b_.CreateSub(block.end, block.start), d_.heights.back()),
        bytes_at(scratch_, d_.scratch.panel),
    };
    order_panels(group);
    // Without any k the sums are zero, not left out.
    Value* end_of_k = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, expr(d_.plan.k), i64(1));
    const std::vector<Value*> none;
    auto for_parts = [&](const auto& body) {
        emit_loop(b_, "part", i64(0), end_of_k, i64(d_.block_k), {},
                  [&](Value* from, const std::vector<Value*>&) {
                      body(from);
                      return none;
                  });
    };
    auto for_panels = [&](const auto& body) { emit_loop(b_, "panel", i64(0), group.panels, body); };
    if (d_.plan.split())
        for_parts([&](Value* from) {
            if (d_.b_by_points) find_points(group, from);
            for_panels([&](Value* n_th) { part_of_panel(group, from, n_th); });
        });
    else
        for_panels([&](Value* n_th) {
            for_parts([&](Value* from) { part_of_panel(group, from, n_th); });
        });
}

}  // namespace ingot::codegen
