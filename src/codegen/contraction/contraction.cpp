// The driver around the micro-kernels. See contraction.h.
#include "codegen/contraction/contraction.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string>

#include "codegen/contraction/decisions.h"
#include "codegen/contraction/ir_loop.h"
#include "codegen/contraction/micro_kernel.h"
#include "codegen/contraction/point.h"
#include "ir/error.h"

namespace ingot::codegen {
namespace {

using llvm::Value;

/// Writes the functions of one kernel.
class Emitter {
  public:
    Emitter(llvm::Module& module, const Kernel& kernel, const TargetInfo& target,
            std::string prefix)
        : module_(module),
          kernel_(kernel),
          c_(*kernel.contraction),
          target_(target),
          prefix_(std::move(prefix)),
          d_(decide(kernel, target)),
          b_(module.getContext()),
          element_(d_.dtype == DType::F64 ? b_.getDoubleTy() : b_.getFloatTy()) {}

    KernelCode emit();

  private:
    // ---- small things ----
    Value* i64(std::int64_t v) { return b_.getInt64(static_cast<std::uint64_t>(v)); }
    Value* expr(Expr e) { return emit_expr(b_, e, symbols_); }
    Value* at(llvm::Type* type, Value* base, Value* index) {
        return b_.CreateGEP(type, base, index);
    }
    Value* bytes_at(Value* base, Expr offset) { return at(b_.getInt8Ty(), base, expr(offset)); }
    TileShape shape(int rows, int vectors) const {
        const bool interleaved = d_.plan.b.form == OperandForm::Runs;
        return {element_,
                d_.plan.tile.lanes,
                vectors,
                rows,
                !d_.plan.pairs ? DotKind::Elements
                : interleaved  ? DotKind::InterleavedPairs
                               : DotKind::Pairs,
                looks_ahead()};
    }
    /// Panels that were packed ahead lie one behind the other, mostly outside the caches: while one
    /// is used, the next is fetched.
    bool looks_ahead() const { return d_.plan.b.form == OperandForm::Panels; }
    /// Of the operands in memory.
    llvm::Type* operand_type() { return d_.plan.pairs ? b_.getInt16Ty() : element_; }
    Value* units(Expr along_k) { return expr(d_.units(along_k)); }
    int columns() const { return d_.plan.tile.columns(); }
    Value* select_min(Value* x, Value* y) {
        return b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, x, y);
    }
    Value* pointer(std::int32_t buffer) const {
        return buffers_.list[static_cast<std::size_t>(buffer)].pointer;
    }
    void if_then(Value* condition, const std::function<void()>& body);

    // ---- functions ----
    llvm::Function* begin_function(const std::string& name, llvm::ArrayRef<llvm::Type*> extra,
                                   bool is_public);
    /// Internal functions: (buffers, sizes, error, batch, ...).
    llvm::Function* table_function(const char* name, const OperandPlan& operand,
                                   const std::vector<Inst>& insts, const std::vector<Loop>& loops,
                                   Expr limit);
    struct ComputedPoint {
        Value* mask;  // null: all
        Expr along;
        int width;  // in lanes
        Value* place;
        bool keep_others;  // memory outside the mask stays as it is
    };
    void compute_at(const std::vector<Inst>& insts, const ComputedPoint& at_point);
    Value* lane_mask(Value* left);
    llvm::Function* compute_a();
    llvm::Function* compute_b();
    llvm::Function* epilogue_function();
    void epilogue_rows(llvm::Function* f, bool masked);
    llvm::Function* main_function();

    // ---- the parts of the main function ----
    using TileBody = std::function<void(int height, Value* row, Value* local)>;
    void for_tiles(Value* start, Value* end, const TileBody& body);
    void prepare_block(Value* batch, Value* start, Value* end);
    struct PanelValue {
        Value* address;
        Value* distance;
    };
    PanelValue panel(Value* batch, Value* index, Value* first_column, Value* count);
    void tiles(Value* batch, Value* start, Value* end, Value* panel_index);
    void call(llvm::Function* f, std::vector<Value*> extra);

    llvm::Module& module_;
    const Kernel& kernel_;
    const Contraction& c_;
    const TargetInfo& target_;
    std::string prefix_;
    Decisions d_;
    llvm::IRBuilder<> b_;
    llvm::Type* element_;

    // Of the function being written:
    PointEmitter::Buffers buffers_;
    SymbolValues symbols_;
    Value* buffers_argument_ = nullptr;
    Value* sizes_argument_ = nullptr;
    Value* error_argument_ = nullptr;
    Value* scratch_ = nullptr;

    llvm::Function* fill_a_ = nullptr;
    llvm::Function* fill_b_ = nullptr;
    llvm::Function* epilogue_ = nullptr;
};

void Emitter::if_then(Value* condition, const std::function<void()>& body) {
    llvm::Function* f = b_.GetInsertBlock()->getParent();
    auto* then = llvm::BasicBlock::Create(b_.getContext(), "then", f);
    auto* after = llvm::BasicBlock::Create(b_.getContext(), "after", f);
    b_.CreateCondBr(condition, then, after);
    b_.SetInsertPoint(then);
    body();
    b_.CreateBr(after);
    b_.SetInsertPoint(after);
}

llvm::Function* Emitter::begin_function(const std::string& name,
                                        llvm::ArrayRef<llvm::Type*> parameters, bool is_public) {
    auto* type = llvm::FunctionType::get(b_.getVoidTy(), parameters, false);
    auto* f = llvm::Function::Create(
        type, is_public ? llvm::GlobalValue::ExternalLinkage : llvm::GlobalValue::InternalLinkage,
        name, module_);
    f->addFnAttr(llvm::Attribute::NoUnwind);
    if (!is_public) f->addFnAttr(llvm::Attribute::NoInline);
    b_.SetInsertPoint(llvm::BasicBlock::Create(b_.getContext(), "entry", f));
    buffers_argument_ = f->getArg(0);
    sizes_argument_ = f->getArg(1);
    buffers_.list.clear();
    std::int64_t argument = 0;
    for (const KernelBuffer& buffer : kernel_.buffers) {
        if (buffer.scope != BufferScope::Argument)
            throw NotSupported("contraction: scratch buffers");
        Value* slot = at(b_.getPtrTy(), buffers_argument_, i64(argument++));
        buffers_.list.push_back({b_.CreateLoad(b_.getPtrTy(), slot), buffer.dtype});
    }
    symbols_.clear();
    for (std::size_t n = 0; n < kernel_.sizes.size(); ++n) {
        Value* slot = at(b_.getInt64Ty(), sizes_argument_, i64(static_cast<std::int64_t>(n)));
        if (kernel_.sizes[n].is_symbol())
            symbols_[kernel_.sizes[n].node()] = b_.CreateLoad(b_.getInt64Ty(), slot);
    }
    return f;
}

void Emitter::call(llvm::Function* f, std::vector<Value*> extra) {
    extra.insert(extra.begin(), {buffers_argument_, sizes_argument_, error_argument_});
    b_.CreateCall(f, extra);
}

/// f(buffers, sizes, error, batch, first, count, table, zero): table[segment][i] = the run of
/// operand row first + i, or zeros where the mask fails or the row is past `limit`.
llvm::Function* Emitter::table_function(const char* name, const OperandPlan& operand,
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
    Value* segments = expr(operand.segments);
    Value* bound = expr(limit);
    emit_loop(b_, "row", i64(0), f->getArg(5), [&](Value* row) {
        Value* index = b_.CreateAdd(f->getArg(4), row);
        Value* exists = b_.CreateICmpSLT(index, bound);
        // Rows that do not exist are described as row 0 and then replaced by zeros.
        bind_loops(b_, b_.CreateSelect(exists, index, i64(0)), loops, symbols_);
        emit_loop(b_, "segment", i64(0), segments, [&](Value* segment) {
            bind_loops(b_, segment, outer, symbols_);
            Value* valid = exists;
            if (operand.mask != kNone) {
                PointEmitter point(b_, target_, buffers_, c_.round_intermediates);
                point.symbols = symbols_;
                valid = b_.CreateAnd(valid, point.emit_one(insts, operand.mask));
            }
            Value* run = at(operand_type(), pointer(operand.buffer), expr(operand.offset));
            Value* entry = b_.CreateAdd(b_.CreateMul(segment, f->getArg(5)), row);
            b_.CreateStore(b_.CreateSelect(valid, run, f->getArg(7)), at(ptr, f->getArg(6), entry));
        });
    });
    b_.CreateRetVoid();
    return f;
}

/// The value of `insts` at the point that symbols_ describe (or a vector of points along `along`),
/// stored at `place`. Lanes outside `mask` become zero, or are left alone.
void Emitter::compute_at(const std::vector<Inst>& insts, const ComputedPoint& at_point) {
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
Value* Emitter::lane_mask(Value* left) {
    const auto lanes = static_cast<unsigned>(d_.plan.tile.lanes);
    return b_.CreateICmpSLT(IndexEmitter::iota(b_.getInt64Ty(), lanes),
                            b_.CreateVectorSplat(lanes, left));
}

/// f(buffers, sizes, error, batch, first, count, out, zero): out[i][k] of A for rows first + i.
/// Vectors run along the innermost k.
llvm::Function* Emitter::compute_a() {
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
        bind_loops(b_, b_.CreateSelect(exists, index, i64(0)), c_.m, symbols_);
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
llvm::Function* Emitter::compute_b() {
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

/// f(buffers, sizes, error, batch, first row, rows, first column, columns, tile)
llvm::Function* Emitter::epilogue_function() {
    auto* ptr = b_.getPtrTy();
    auto* word = b_.getInt64Ty();
    llvm::Function* f = begin_function(prefix_ + "_epilogue",
                                       {ptr, ptr, ptr, word, word, word, word, word, ptr}, false);
    buffers_.error = error_argument_ = f->getArg(2);
    bind_loops(b_, f->getArg(3), c_.batch, symbols_);
    const Expr n = d_.plan.n;
    if (n.is_constant() && n.constant() % columns() == 0) {
        epilogue_rows(f, false);
    } else {
        Value* full = b_.CreateICmpEQ(f->getArg(7), i64(columns()));
        auto* all = llvm::BasicBlock::Create(b_.getContext(), "full", f);
        auto* part = llvm::BasicBlock::Create(b_.getContext(), "part", f);
        b_.CreateCondBr(full, all, part);
        b_.SetInsertPoint(all);
        const SymbolValues kept = symbols_;
        epilogue_rows(f, false);
        b_.CreateRetVoid();
        b_.SetInsertPoint(part);
        symbols_ = kept;
        epilogue_rows(f, true);
    }
    b_.CreateRetVoid();
    return f;
}

void Emitter::epilogue_rows(llvm::Function* f, bool masked) {
    const int lanes = d_.plan.tile.lanes;
    // Vectors along the last n loop, if none of them runs over its end.
    const bool vectors = c_.n.size() == 1 || (c_.n.size() > 1 && c_.n.back().extent.is_constant() &&
                                              c_.n.back().extent.constant() % lanes == 0);
    const int step = vectors ? lanes : 1;
    Value* tile = f->getArg(8);
    auto* vector = llvm::FixedVectorType::get(element_, static_cast<unsigned>(lanes));
    emit_loop(b_, "row", i64(0), f->getArg(5), [&](Value* row) {
        bind_loops(b_, b_.CreateAdd(f->getArg(4), row), c_.m, symbols_);
        emit_loop(b_, "column", i64(0), masked ? f->getArg(7) : i64(columns()), i64(step), {},
                  [&](Value* column, const std::vector<Value*>&) {
                      bind_loops(b_, b_.CreateAdd(f->getArg(6), column), c_.n, symbols_);
                      PointEmitter point(b_, target_, buffers_, c_.round_intermediates);
                      point.symbols = symbols_;
                      Value* mask = nullptr;
                      if (vectors && masked) {
                          Value* left = b_.CreateSub(f->getArg(7), column);
                          mask = b_.CreateICmpSLT(
                              IndexEmitter::iota(b_.getInt64Ty(), static_cast<unsigned>(lanes)),
                              b_.CreateVectorSplat(static_cast<unsigned>(lanes), left));
                      }
                      if (vectors) point.vectorize(c_.n.back().var, lanes, mask);
                      Value* place = b_.CreateAdd(b_.CreateMul(row, i64(columns())), column);
                      point.accumulator = b_.CreateAlignedLoad(
                          vectors ? static_cast<llvm::Type*>(vector) : element_,
                          at(element_, tile, place),
                          llvm::Align(static_cast<std::uint64_t>(bytes(d_.dtype))));
                      point.emit(c_.epilogue.insts);
                      for (const Store& s : c_.epilogue.stores) point.store(s);
                      return std::vector<Value*>{};
                  });
    });
}

/// The block's tiles: full ones in a loop, then the rest.
void Emitter::for_tiles(Value* start, Value* end, const TileBody& body) {
    const int full = d_.heights[0];
    Value* count = b_.CreateSub(end, start);
    Value* counted = d_.pad_rest ? b_.CreateAdd(count, i64(full - 1)) : count;
    Value* whole = b_.CreateMul(b_.CreateUDiv(counted, i64(full)), i64(full));
    emit_loop(b_, "tile", i64(0), whole, i64(full), {},
              [&](Value* local, const std::vector<Value*>&) {
                  body(full, b_.CreateAdd(start, local), local);
                  return std::vector<Value*>{};
              });
    // Each smaller height at most once: the rest in binary, or the constant rest itself. A height
    // of which two may be needed (12 = 8 + 4 leaves at most 11 = 8 + 2 + 1) does not occur.
    Value* local = whole;
    for (std::size_t n = 1; n < d_.heights.size(); ++n) {
        const int height = d_.heights[n];
        Value* fits = b_.CreateICmpSGE(b_.CreateSub(count, local), i64(height));
        if_then(fits, [&] { body(height, b_.CreateAdd(start, local), local); });
        local = b_.CreateSelect(fits, b_.CreateAdd(local, i64(height)), local);
    }
}

void Emitter::prepare_block(Value* batch, Value* start, Value* end) {
    Value* zero = bytes_at(scratch_, d_.scratch.zero);
    Value* table = bytes_at(scratch_, d_.scratch.table);
    Value* k = units(d_.plan.k);
    const bool computed = d_.plan.a.form == OperandForm::Computed;
    for_tiles(start, end, [&](int height, Value* row, Value* local) {
        Value* packed =
            at(element_, bytes_at(scratch_, d_.scratch.a_packed), b_.CreateMul(local, k));
        if (computed) {
            Value* rows = bytes_at(scratch_, d_.scratch.a_rows);
            call(fill_a_, {batch, row, i64(height), rows, zero});
            for (int r = 0; r < height; ++r)
                b_.CreateStore(at(element_, rows, b_.CreateMul(k, i64(r))),
                               at(b_.getPtrTy(), table, i64(r)));
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

Emitter::PanelValue Emitter::panel(Value* batch, Value* index, Value* first_column, Value* count) {
    const OperandPlan& operand = d_.plan.b;
    Value* k = units(d_.plan.k);
    Value* packed_distance = i64(columns());
    SymbolValues origin = symbols_;
    bind_loops(b_, batch, c_.batch, origin);
    for (const Loop& l : c_.k) origin[l.var.node()] = i64(0);
    for (const Loop& l : c_.n) origin[l.var.node()] = i64(0);
    auto origin_address = [&] {
        return at(operand_type(), pointer(operand.buffer), emit_expr(b_, operand.offset, origin));
    };
    if (operand.form == OperandForm::Panels)
        return {
            at(element_, origin_address(), b_.CreateMul(b_.CreateMul(index, k), packed_distance)),
            packed_distance};
    Value* out = bytes_at(scratch_, d_.scratch.panel);
    if (operand.form == OperandForm::Columns) {
        Value* from = at(operand_type(), origin_address(), first_column);
        Value* distance = expr(operand.stride);
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

void Emitter::tiles(Value* batch, Value* start, Value* end, Value* panel_index) {
    Value* k = units(d_.plan.k);
    Value* n = expr(d_.plan.n);
    Value* first_column = b_.CreateMul(panel_index, i64(columns()));
    Value* count = select_min(b_.CreateSub(n, first_column), i64(columns()));
    const PanelValue right = panel(batch, panel_index, first_column, count);
    const std::int64_t distance = d_.b_in_place ? kRuntimeStride : columns();
    const int vectors = d_.plan.tile.vectors;
    // The last panel may need fewer vectors.
    int last_vectors = vectors;
    if (d_.plan.n.is_constant() && d_.plan.n.constant() % columns() != 0)
        last_vectors = static_cast<int>(
            (d_.plan.n.constant() % columns() + d_.plan.tile.lanes - 1) / d_.plan.tile.lanes);
    auto kernel = [&](int height) -> llvm::FunctionCallee {
        auto make = [&](int v) {
            return d_.pack_a ? packed_kernel(module_, shape(height, v), distance)
                             : rows_kernel(module_, shape(height, v), distance);
        };
        llvm::Function* usual = make(vectors);
        if (last_vectors == vectors) return usual;
        Value* is_last = b_.CreateICmpSLT(count, i64(columns()));
        return {usual->getFunctionType(), b_.CreateSelect(is_last, make(last_vectors), usual)};
    };
    Value* shift = d_.batch_shift ? b_.CreateMul(batch, expr(*d_.batch_shift)) : i64(0);
    Value* tile_count = i64(1);
    const std::int64_t row_bytes = std::int64_t{columns()} * bytes(d_.dtype);
    if (looks_ahead()) {
        const int full = d_.heights[0];
        tile_count =
            b_.CreateUDiv(b_.CreateAdd(b_.CreateSub(end, start), i64(full - 1)), i64(full));
    }
    // `from` and `length` of k; what is behind them in B is fetched meanwhile, each tile its share,
    // a little with each k.
    auto pass = [&](Value* from, Value* length, Value* is_last_part) {
        Value* right_part = at(b_.getInt8Ty(), right.address, b_.CreateMul(from, i64(row_bytes)));
        Value* next_step = b_.CreateUDiv(i64(row_bytes), tile_count);
        Value* share_bytes = b_.CreateMul(length, next_step);
        Value* behind = at(b_.getInt8Ty(), right_part, b_.CreateMul(length, i64(row_bytes)));
        Value* add = b_.CreateICmpNE(from, i64(0));
        for_tiles(start, end, [&](int height, Value* row, Value* local) {
            const llvm::FunctionCallee f = kernel(height);
            Value* ldc = i64(columns());
            Value* sums = d_.block_k > 0
                              ? at(element_, scratch_, b_.CreateMul(local, i64(columns())))
                              : scratch_;
            Value* next = at(b_.getInt8Ty(), behind,
                             b_.CreateMul(b_.CreateUDiv(local, i64(d_.heights[0])), share_bytes));
            if (d_.pack_a) {
                Value* a =
                    at(element_, bytes_at(scratch_, d_.scratch.a_packed), b_.CreateMul(local, k));
                a = at(element_, a, b_.CreateMul(from, i64(height)));
                b_.CreateCall(
                    f, {a, length, right_part, right.distance, sums, ldc, add, next, next_step});
            } else {
                Value* segments = expr(d_.plan.a.segments);
                Value* table = at(b_.getPtrTy(), bytes_at(scratch_, d_.scratch.table),
                                  b_.CreateMul(local, segments));
                Value* run = d_.block_k > 0 ? length : units(d_.plan.a.run);
                Value* part_shift = b_.CreateAdd(shift, b_.CreateMul(from, i64(bytes(d_.dtype))));
                b_.CreateCall(f, {table, segments, run, right_part, right.distance, sums, ldc, add,
                                  part_shift, next, next_step});
            }
            Value* rows =
                d_.pad_rest ? select_min(b_.CreateSub(end, row), i64(height)) : i64(height);
            if_then(is_last_part,
                    [&] { call(epilogue_, {batch, row, rows, first_column, count, sums}); });
        });
    };
    if (d_.block_k == 0) {
        pass(i64(0), k, b_.getTrue());
        return;
    }
    emit_loop(
        b_, "part", i64(0), k, i64(d_.block_k), {}, [&](Value* from, const std::vector<Value*>&) {
            Value* left = b_.CreateSub(k, from);
            pass(from, select_min(left, i64(d_.block_k)), b_.CreateICmpSLE(left, i64(d_.block_k)));
            return std::vector<Value*>{};
        });
}

/// The KernelFn.
llvm::Function* Emitter::main_function() {
    auto* ptr = b_.getPtrTy();
    auto* word = b_.getInt64Ty();
    llvm::Function* f = begin_function(prefix_, {ptr, ptr, word, word, ptr, ptr}, true);
    scratch_ = f->getArg(4);
    error_argument_ = f->getArg(5);
    Value* zero_bytes = expr(d_.scratch.a_rows - d_.scratch.zero);
    b_.CreateMemSet(bytes_at(scratch_, d_.scratch.zero), b_.getInt8(0), zero_bytes,
                    llvm::MaybeAlign(64));
    Value* panels = expr(d_.panels);
    Value* blocks = expr(d_.blocks);
    Value* m = expr(d_.plan.m);
    emit_loop(b_, "item", f->getArg(2), f->getArg(3), i64(1), {i64(-1)},
              [&](Value* item, const std::vector<Value*>& carried) {
                  Value* panel_index = b_.CreateURem(item, panels);
                  Value* rest = b_.CreateUDiv(item, panels);
                  // Blocks within batches, or batches within blocks where they share the table.
                  Value* inner = d_.batch_shift ? expr(d_.plan.batch) : blocks;
                  Value* low = b_.CreateURem(rest, inner);
                  Value* high = b_.CreateUDiv(rest, inner);
                  Value* batch = d_.batch_shift ? low : high;
                  Value* block_index = d_.batch_shift ? high : low;
                  Value* block = d_.batch_shift ? high : rest;
                  Value* start = b_.CreateMul(block_index, i64(d_.block_rows));
                  Value* is_last = b_.CreateICmpEQ(block_index, b_.CreateSub(blocks, i64(1)));
                  Value* end = b_.CreateSelect(is_last, m, b_.CreateAdd(start, i64(d_.block_rows)));
                  if_then(b_.CreateICmpNE(block, carried[0]),
                          [&] { prepare_block(d_.batch_shift ? i64(0) : batch, start, end); });
                  tiles(batch, start, end, panel_index);
                  return std::vector<Value*>{block};
              });
    b_.CreateRetVoid();
    return f;
}

KernelCode Emitter::emit() {
    fill_a_ = d_.plan.a.form == OperandForm::Runs
                  ? table_function("_rows", d_.plan.a, c_.a_insts, c_.m, d_.plan.m)
                  : compute_a();
    if (d_.plan.b.form == OperandForm::Runs)
        fill_b_ = table_function("_columns", d_.plan.b, c_.b_insts, c_.n, d_.plan.n);
    if (d_.plan.b.form == OperandForm::Computed) fill_b_ = compute_b();
    epilogue_ = epilogue_function();
    llvm::Function* f = main_function();
    Launch launch;
    launch.symbol = f->getName().str();
    launch.work = d_.plan.batch * d_.blocks * d_.panels;
    // Some 20 microseconds' worth of FMAs make a thread worth waking.
    const std::int64_t per_item =
        std::max<std::int64_t>(1, std::min(d_.block_rows, or_default(d_.plan.m, d_.block_rows)) *
                                      columns() * or_default(d_.plan.k, 512));
    launch.grain = std::max<std::int64_t>(1, 1000000 / per_item);
    launch.scratch_bytes = d_.scratch.total;
    return {{launch}};
}

}  // namespace

namespace {
/// Measured where named, one thread; PyTorch's libraries are Intel's, and only its own processors
/// run their best code.
ContractionRates rates_of(Maker maker) {
    if (maker != Maker::Intel) return {};
    // Sapphire Rapids, 230 GFLOP/s a core: sgemm 125 to 180 in all orders of its operands;
    // generated ones 0.85 to 1.05 of it while a block of rows stays in the second cache, and 0.45
    // to 0.8 from the third, which is far. Convolutions of several taps: 0.9 to 1.2 of oneDNN's,
    // and over twice as fast where an image has three channels.
    return {.peak_gflops = 230,
            .generated = 0.54,
            .generated_far = 0.42,
            .vendor = 0.6,
            .vendor_taps = 0.48,
            .vendor_few = 0.12};
}
}  // namespace

VectorTarget vector_target(const TargetInfo& target) {
    VectorTarget v;
    v.vector_bits = static_cast<int>(target.vector_bits);
    // 28 leave three registers for the operands; fewer broadcasts for each FMA are worth 5 % where
    // a core has two of the widest FMAs a cycle (Intel's).
    v.tile_vectors = target.vector_registers() < 32 ? 12 : target.maker == Maker::Intel ? 28 : 24;
    v.l2_bytes = static_cast<std::int64_t>(target.l2_bytes);
    v.cores = static_cast<int>(target.cores);
    v.bf16_dot = target.avx512bf16;
    v.rates = rates_of(target.maker);
    return v;
}

KernelCode emit_contraction(llvm::Module& module, const Kernel& kernel, const TargetInfo& target,
                            std::string_view symbol_prefix) {
    return Emitter(module, kernel, target, std::string(symbol_prefix)).emit();
}

}  // namespace ingot::codegen
