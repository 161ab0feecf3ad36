// What brings the operands of a contraction to its micro-kernels: tables of pointers to rows and
// columns, operands that are computed, panels. See emitter.h.
#include "codegen/contraction/emitter.h"
#include "codegen/contraction/ir_loop.h"
#include "codegen/contraction/pair_rows.h"

namespace ingot::codegen {

using llvm::Value;

/// f(buffers, sizes, error, batch, first, count, table, zero): table[segment][i] = the run of
/// operand row first + i, or zeros where the mask fails or the row is past `limit`.
llvm::Function* ContractionEmitter::table_function(const char* name, const OperandPlan& operand,
                                                   const std::vector<Inst>& insts,
                                                   const std::vector<Loop>& loops, Expr limit) {
    auto* ptr = b_.getPtrTy();
    auto* word = b_.getInt64Ty();
    llvm::Function* f =
        begin_function(prefix_ + name, {ptr, ptr, ptr, word, word, word, ptr, ptr}, false);
    buffers_.error = error_argument_ = f->getArg(2);
    const std::vector<Loop> outer(c_.k.begin(),
                                  c_.k.begin() + static_cast<std::ptrdiff_t>(operand.inner));
    bind_loops(b_, f->getArg(3), c_.batch, symbols_);
    for (std::size_t n = operand.inner; n < c_.k.size(); ++n) symbols_[c_.k[n].var.node()] = i64(0);
    Value* bound = expr(limit);
    const Odometer rows(loops);
    const std::vector<Value*> first = rows.start(b_, f->getArg(4), symbols_);
    emit_loop(b_, "row", i64(0), f->getArg(5), i64(1), first, [&](Value* row, const auto& at_row) {
        Value* exists = b_.CreateICmpSLT(b_.CreateAdd(f->getArg(4), row), bound);
        // Rows that do not exist are described as row 0 and then replaced by zeros.
        std::vector<Value*> described = at_row;
        for (Value*& v : described) v = b_.CreateSelect(exists, v, i64(0));
        rows.bind(described, symbols_);
        // A loop for each of the outer k, so that what an inner one does not change is found once.
        // Returns the place of the entry behind the last.
        const std::function<Value*(std::size_t, Value*)> runs = [&](std::size_t n, Value* entry) {
            if (n < outer.size())
                return emit_loop(b_, "runs", i64(0), expr(outer[n].extent), i64(1), {entry},
                                 [&](Value* i, const std::vector<Value*>& place) {
                                     symbols_[outer[n].var.node()] = i;
                                     return std::vector<Value*>{runs(n + 1, place[0])};
                                 })[0];
            Value* valid = exists;
            if (operand.mask != kNone) {
                PointEmitter point(b_, target_, buffers_, c_.round_intermediates);
                point.symbols = symbols_;
                valid = b_.CreateAnd(valid, point.emit_one(insts, operand.mask));
            }
            Value* run = at(operand_type(), pointer(operand.buffer), expr(operand.offset));
            b_.CreateStore(b_.CreateSelect(valid, run, f->getArg(7)), at(ptr, f->getArg(6), entry));
            return b_.CreateAdd(entry, f->getArg(5));
        };
        runs(0, row);
        return rows.next(b_, at_row, symbols_);
    });
    b_.CreateRetVoid();
    return f;
}

/// f(buffers, sizes, error, batch, first, count, table): table[i] = the row of B at k = first + i
/// and column 0; behind the last k, that of the last.
llvm::Function* ContractionEmitter::point_table_function() {
    auto* ptr = b_.getPtrTy();
    auto* word = b_.getInt64Ty();
    llvm::Function* f =
        begin_function(prefix_ + "_points", {ptr, ptr, ptr, word, word, word, ptr}, false);
    bind_loops(b_, f->getArg(3), c_.batch, symbols_);
    for (const Loop& l : c_.n) symbols_[l.var.node()] = i64(0);
    Value* last = b_.CreateSub(expr(d_.plan.k), i64(1));
    emit_loop(b_, "point", i64(0), f->getArg(5), [&](Value* n) {
        bind_loops(b_, select_min(b_.CreateAdd(f->getArg(4), n), last), c_.k, symbols_);
        Value* row = at(operand_type(), pointer(d_.plan.b.buffer), expr(d_.plan.b.offset));
        b_.CreateStore(row, at(ptr, f->getArg(6), n));
    });
    b_.CreateRetVoid();
    return f;
}

/// The value of `insts` at the point that symbols_ describe (or a vector of points along `along`),
/// stored at `place`. Lanes outside `mask` become zero, or are left alone.
void ContractionEmitter::compute_at(const std::vector<Inst>& insts, const ComputedPoint& at_point) {
    PointEmitter point(b_, target_, buffers_, c_.round_intermediates);
    point.symbols = symbols_;
    const int width = at_point.width;
    Value* mask = at_point.mask;
    if (width > 1) point.vectorize(at_point.along, width, mask);
    point.emit(insts);
    Value* v = splat(b_, point.value(static_cast<InstId>(insts.size() - 1)),
                     width > 1 ? static_cast<unsigned>(width) : 0);
    llvm::Type* type = with_lanes(element_, static_cast<unsigned>(width));
    if (v->getType() != type) v = b_.CreateFPCast(v, type);
    if (mask) v = b_.CreateSelect(mask, v, llvm::Constant::getNullValue(type));
    const llvm::Align align(static_cast<std::uint64_t>(bytes(d_.dtype)));
    if (mask && at_point.keep_others)
        b_.CreateMaskedStore(v, at_point.place, align, mask);
    else
        b_.CreateAlignedStore(v, at_point.place, align);
}

/// <lanes x i1>: lane < left.
Value* ContractionEmitter::lane_mask(Value* left) {
    const auto lanes = static_cast<unsigned>(d_.plan.tile.lanes);
    return b_.CreateICmpSLT(IndexEmitter::iota(b_.getInt64Ty(), lanes),
                            b_.CreateVectorSplat(lanes, left));
}

/// f(buffers, sizes, error, batch, first, count, out, zero): out[i][k] of A for rows first + i.
/// Vectors run along the innermost k.
llvm::Function* ContractionEmitter::compute_a() {
    auto* ptr = b_.getPtrTy();
    auto* word = b_.getInt64Ty();
    llvm::Function* f =
        begin_function(prefix_ + "_a", {ptr, ptr, ptr, word, word, word, ptr, ptr}, false);
    buffers_.error = error_argument_ = f->getArg(2);
    bind_loops(b_, f->getArg(3), c_.batch, symbols_);
    Value* k_count = expr(d_.plan.k);
    Value* first = f->getArg(4);
    Value* count = f->getArg(5);
    Value* out = f->getArg(6);
    const int lanes = d_.plan.tile.lanes;
    const std::vector<Value*> none;
    std::vector<Loop> outer = c_.k;
    const bool vectors = !outer.empty();
    Loop inner{Expr(0), 1, LoopKind::Serial};
    if (vectors) {
        inner = outer.back();
        outer.pop_back();
    }
    Value* run = expr(inner.extent);
    Expr segments = 1;
    for (const Loop& l : outer) segments *= l.extent;
    emit_loop(b_, "i", i64(0), count, [&](Value* i) {
        // A row past the end is computed as row 0; its sums are not stored.
        Value* index = b_.CreateAdd(first, i);
        Value* exists = b_.CreateICmpSLT(index, expr(d_.plan.m));
        bind_loops(b_, b_.CreateSelect(exists, index, i64(0)), d_.rows, symbols_);
        emit_loop(b_, "segment", i64(0), expr(segments), [&](Value* segment) {
            bind_loops(b_, segment, outer, symbols_);
            Value* start = b_.CreateAdd(b_.CreateMul(i, k_count), b_.CreateMul(segment, run));
            emit_loop(b_, "k", i64(0), run, i64(vectors ? lanes : 1), {},
                      [&](Value* k, const std::vector<Value*>&) {
                          if (vectors) symbols_[inner.var.node()] = k;
                          compute_at(c_.a_insts,
                                     {vectors ? lane_mask(b_.CreateSub(run, k)) : nullptr,
                                      inner.var, vectors ? lanes : 1,
                                      at(element_, out, b_.CreateAdd(start, k)), true});
                          return none;
                      });
        });
    });
    b_.CreateRetVoid();
    return f;
}

/// The same for B: out[k][i] for columns first + i, zero past the last. Vectors run along n.
llvm::Function* ContractionEmitter::compute_b() {
    auto* ptr = b_.getPtrTy();
    auto* word = b_.getInt64Ty();
    llvm::Function* f =
        begin_function(prefix_ + "_b", {ptr, ptr, ptr, word, word, word, ptr, ptr}, false);
    buffers_.error = error_argument_ = f->getArg(2);
    bind_loops(b_, f->getArg(3), c_.batch, symbols_);
    Value* k_count = expr(d_.plan.k);
    Value* first = f->getArg(4);
    Value* count = f->getArg(5);
    Value* out = f->getArg(6);
    const int lanes = d_.plan.tile.lanes;
    const std::vector<Value*> none;
    const bool vectors = c_.n.size() == 1;
    Value* bound = expr(d_.plan.n);
    emit_loop(b_, "k", i64(0), k_count, [&](Value* k) {
        bind_loops(b_, k, c_.k, symbols_);
        emit_loop(b_, "i", i64(0), count, i64(vectors ? lanes : 1), {},
                  [&](Value* i, const std::vector<Value*>&) {
                      Value* index = b_.CreateAdd(first, i);
                      Value* exists = b_.CreateICmpSLT(index, bound);
                      Value* place = b_.CreateAdd(b_.CreateMul(k, i64(columns())), i);
                      // A point past the end is computed as point 0.
                      Value* safe = b_.CreateSelect(exists, index, i64(0));
                      bind_loops(b_, safe, c_.n, symbols_);
                      compute_at(c_.b_insts,
                                 {vectors ? lane_mask(b_.CreateSub(bound, index)) : exists,
                                  vectors ? c_.n[0].var : Expr(0), vectors ? lanes : 1,
                                  at(element_, out, place), false});
                      return none;
                  });
    });
    b_.CreateRetVoid();
    return f;
}

/// A tile's rows of a computed A, one behind the other, and a table of where they begin.
void ContractionEmitter::compute_rows(Value* batch, Value* row, int height, Value* k) {
    Value* table = bytes_at(scratch_, d_.scratch.table);
    Value* rows = bytes_at(scratch_, d_.scratch.a_rows);
    call(fill_a_, {batch, row, i64(height), rows, bytes_at(scratch_, d_.scratch.zero)});
    for (int r = 0; r < height; ++r)
        b_.CreateStore(at(element_, rows, b_.CreateMul(k, i64(r))),
                       at(b_.getPtrTy(), table, i64(r)));
}

void ContractionEmitter::prepare_block(Value* batch, Value* start, Value* end) {
    Value* zero = bytes_at(scratch_, d_.scratch.zero);
    Value* table = bytes_at(scratch_, d_.scratch.table);
    Value* k = units(d_.plan.k);
    const bool computed = d_.plan.a.form == OperandForm::Computed;
    for_tiles(start, end, [&](int height, Value* row, Value* local) {
        if (d_.plan.by_matrix_units()) return matrix_rows(batch, height, row, local);
        Value* packed =
            at(element_, bytes_at(scratch_, d_.scratch.a_packed), b_.CreateMul(local, k));
        if (computed) {
            compute_rows(batch, row, height, k);
            b_.CreateCall(row_packer(module_, element_),
                          {table, i64(1), k, i64(1), i64(height), packed, zero});
            return;
        }
        Value* segments = expr(d_.plan.a.segments);
        Value* entries =
            d_.pack_a ? table : at(b_.getPtrTy(), table, b_.CreateMul(local, segments));
        call(fill_a_, {batch, row, i64(height), entries, zero});
        if (d_.pack_a)
            b_.CreateCall(row_packer(module_, element_),
                          {table, segments, units(d_.plan.a.run), expr(d_.plan.a.step), i64(height),
                           packed, zero});
    });
}

/// B's element at k = 0 and column 0.
Value* ContractionEmitter::first_of_b(Value* batch) {
    SymbolValues origin = symbols_;
    bind_loops(b_, batch, c_.batch, origin);
    for (const Loop& l : c_.k) origin[l.var.node()] = i64(0);
    for (const Loop& l : c_.n) origin[l.var.node()] = i64(0);
    return at(operand_type(), pointer(d_.plan.b.buffer), emit_expr(b_, d_.plan.b.offset, origin));
}

ContractionEmitter::PanelValue ContractionEmitter::columns_in_place(Value* batch,
                                                                    Value* first_column) {
    return {at(operand_type(), first_of_b(batch), first_column), expr(d_.plan.b.stride)};
}

/// The panel where it lies, or brought into order at `out`.
ContractionEmitter::PanelValue ContractionEmitter::panel(Value* batch, Value* index,
                                                         Value* first_column, Value* count,
                                                         Value* out) {
    const OperandPlan& operand = d_.plan.b;
    Value* k = units(d_.plan.k);
    Value* packed_distance = i64(columns());
    if (operand.form == OperandForm::Panels) {
        Value* packed =
            at(element_, first_of_b(batch), b_.CreateMul(b_.CreateMul(index, k), packed_distance));
        if (!d_.pairs_once) return {packed, packed_distance, packed};
        llvm::Function* pairing = pair_rows(module_, shape(1, d_.plan.tile.vectors));
        b_.CreateCall(pairing, {packed, k, out});
        return {out, packed_distance, packed};
    }
    if (operand.form == OperandForm::Columns) {
        const PanelValue lies = columns_in_place(batch, first_column);
        Value *from = lies.address, *distance = lies.distance;
        TileShape copied = shape(1, d_.plan.tile.vectors);
        copied.element = operand_type();
        llvm::Function* copier = panel_copier(module_, copied);
        Value* rows = expr(d_.plan.k);
        if (!d_.b_in_place) {
            b_.CreateCall(copier, {from, distance, rows, count, out});
            return {out, packed_distance};
        }
        Value* partial = b_.CreateICmpSLT(count, packed_distance);
        if_then(partial, [&] { b_.CreateCall(copier, {from, distance, rows, count, out}); });
        return {b_.CreateSelect(partial, out, from),
                b_.CreateSelect(partial, packed_distance, distance)};
    }
    Value* zero = bytes_at(scratch_, d_.scratch.zero);
    if (operand.form == OperandForm::Runs) {
        Value* table = bytes_at(scratch_, d_.scratch.b_table);
        call(fill_b_, {batch, first_column, packed_distance, table, zero});
        b_.CreateCall(row_packer(module_, element_),
                      {table, expr(operand.segments), units(operand.run), expr(operand.step),
                       packed_distance, out, zero});
    } else {
        call(fill_b_, {batch, first_column, packed_distance, out, zero});
    }
    return {out, packed_distance};
}

}  // namespace ingot::codegen
