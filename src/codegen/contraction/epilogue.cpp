// What happens to a finished tile: the epilogue, vector by vector. See emitter.h.
#include "codegen/contraction/emitter.h"
#include "codegen/contraction/ir_loop.h"

namespace ingot::codegen {

using llvm::Value;

/// f(buffers, sizes, error, batch, first row, rows, first column, columns, tile)
llvm::Function* ContractionEmitter::epilogue_function() {
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

void ContractionEmitter::epilogue_rows(llvm::Function* f, bool masked) {
    const int lanes = d_.plan.tile.lanes;
    // Vectors along the last n loop, if none of them runs over its end.
    const bool vectors = c_.n.size() == 1 || (c_.n.size() > 1 && c_.n.back().extent.is_constant() &&
                                              c_.n.back().extent.constant() % lanes == 0);
    const int step = vectors ? lanes : 1;
    Value* tile = f->getArg(8);
    auto* vector = llvm::FixedVectorType::get(element_, static_cast<unsigned>(lanes));
    const Odometer rows(d_.rows);
    const std::vector<Value*> first = rows.start(b_, f->getArg(4), symbols_);
    emit_loop(b_, "row", i64(0), f->getArg(5), i64(1), first, [&](Value* row, const auto& at_row) {
        rows.bind(at_row, symbols_);
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
        return rows.next(b_, at_row, symbols_);
    });
}

}  // namespace ingot::codegen
