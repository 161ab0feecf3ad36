// Tiles of bf16 and what orders their operands, as LLVM IR. See matrix_kernel.h.
#include "codegen/contraction/matrix_kernel.h"

#include <string>

#include "codegen/contraction/ir_loop.h"
#include "codegen/contraction/matrix_writer.h"
#include "codegen/contraction/shared_function.h"

namespace ingot::codegen {

using llvm::Value;

llvm::Function* matrix_kernel(llvm::Module& module, int rows) {
    MatrixWriter w(module.getContext());
    llvm::IRBuilder<>& b = w.b;
    auto* ptr = b.getPtrTy();
    auto* word = b.getInt64Ty();
    auto [f, is_new] = shared_function(module, "ingot_matrix_" + std::to_string(rows),
                                       {ptr, word, ptr, ptr, b.getInt1Ty(), ptr, word, word, word});
    if (!is_new) return f;
    b.SetInsertPoint(&f->getEntryBlock());
    // Tile registers 0 to 3 are sums, 4 and 5 rows of A, 6 and 7 columns of B.
    constexpr int kTileA = 4, kTileB = 6, kColumnTiles = 2;
    constexpr std::int64_t kTileBytes = 1024, kRowBytes = 64, kPairBytes = kMatrixColumns * 4;
    const int row_tiles = rows / 16;
    auto for_sums = [&](const auto& body) {
        for (int r = 0; r < row_tiles; ++r)
            for (int c = 0; c < kColumnTiles; ++c)
                body(r * kColumnTiles + c,
                     w.bytes(f->getArg(3), r * 16 * kPairBytes + std::int64_t{c} * kRowBytes));
    };
    auto* add = llvm::BasicBlock::Create(b.getContext(), "add", f);
    auto* replace = llvm::BasicBlock::Create(b.getContext(), "replace", f);
    auto* begin = llvm::BasicBlock::Create(b.getContext(), "begin", f);
    b.CreateCondBr(f->getArg(4), add, replace);
    b.SetInsertPoint(add);
    for_sums([&](int n, Value* at) { w.tile_load(n, at, kPairBytes); });
    b.CreateBr(begin);
    b.SetInsertPoint(replace);
    for_sums([&](int n, Value*) { w.tile_zero(n); });
    b.CreateBr(begin);
    b.SetInsertPoint(begin);
    emit_loop(b, "step", w.index(0), f->getArg(1), [&](Value* step) {
        Value* left = w.bytes(f->getArg(0), b.CreateMul(step, w.index(rows * kRowBytes)));
        Value* right =
            w.bytes(f->getArg(2), b.CreateMul(step, w.index(kMatrixStep / 2 * kPairBytes)));
        // Each load is followed by the products that it makes possible.
        auto load_b = [&](int c) {
            w.tile_load(kTileB + c, w.bytes(right, c * kRowBytes), kPairBytes);
        };
        auto load_a = [&](int r) {
            w.tile_load(kTileA + r, w.bytes(left, r * kTileBytes), kRowBytes);
        };
        auto multiply = [&](int r, int c) {
            w.tile_multiply(r * kColumnTiles + c, kTileA + r, kTileB + c);
        };
        load_b(0), load_a(0), multiply(0, 0);
        load_b(1), multiply(0, 1);
        if (row_tiles > 1) load_a(1), multiply(1, 0), multiply(1, 1);
        w.prefetch_ahead(step, f->getArg(5), f->getArg(6), f->getArg(7), f->getArg(8));
    });
    for_sums([&](int n, Value* at) { w.tile_store(n, at, kPairBytes); });
    b.CreateRetVoid();
    return f;
}

llvm::Function* matrix_rows(llvm::Module& module) {
    MatrixWriter w(module.getContext());
    llvm::IRBuilder<>& b = w.b;
    auto* ptr = b.getPtrTy();
    auto* word = b.getInt64Ty();
    auto [f, is_new] = shared_function(module, "ingot_matrix_rows", {ptr, word, word, word, ptr});
    if (!is_new) return f;
    b.SetInsertPoint(&f->getEntryBlock());
    Value* pairs = f->getArg(2);
    Value* rows = f->getArg(3);
    Value* steps = w.step_count(b.CreateMul(pairs, w.index(2)));
    Value* step_bytes = b.CreateMul(rows, w.index(64));
    emit_loop(b, "segment", w.index(0), f->getArg(1), [&](Value* segment) {
        Value* entries = b.CreateGEP(ptr, f->getArg(0), b.CreateMul(segment, rows));
        Value* out = w.bytes(f->getArg(4), b.CreateMul(b.CreateMul(segment, steps), step_bytes));
        emit_loop(b, "row", w.index(0), rows, [&](Value* row) {
            Value* from = b.CreateLoad(ptr, b.CreateGEP(ptr, entries, row));
            Value* to = w.bytes(out, b.CreateMul(row, w.index(64)));
            emit_loop(b, "step", w.index(0), steps, [&](Value* step) {
                Value* first = b.CreateMul(step, w.index(MatrixWriter::kLanes));
                Value* x = w.load(b.CreateGEP(b.getFloatTy(), from, first),
                                  w.lanes_below(b.CreateSub(pairs, first)));
                b.CreateAlignedStore(x, w.bytes(to, b.CreateMul(step, step_bytes)),
                                     llvm::Align(64));
            });
        });
    });
    b.CreateRetVoid();
    return f;
}

llvm::Function* matrix_panel(llvm::Module& module) {
    MatrixWriter w(module.getContext());
    llvm::IRBuilder<>& b = w.b;
    auto* ptr = b.getPtrTy();
    auto* word = b.getInt64Ty();
    auto [f, is_new] = shared_function(module, "ingot_matrix_panel", {ptr, word, word, ptr});
    if (!is_new) return f;
    b.SetInsertPoint(&f->getEntryBlock());
    auto* row_type = llvm::FixedVectorType::get(b.getInt16Ty(), kMatrixColumns);
    constexpr std::int64_t kPairBytes = kMatrixColumns * 4;
    Value* row_bytes = b.CreateMul(f->getArg(1), w.index(2));
    Value* pairs = b.CreateUDiv(f->getArg(2), w.index(2));
    emit_loop(b, "pair", w.index(0), pairs, [&](Value* n) {
        Value* from = w.bytes(f->getArg(0), b.CreateMul(b.CreateMul(n, w.index(2)), row_bytes));
        Value* first = b.CreateAlignedLoad(row_type, from, llvm::Align(2));
        Value* second = b.CreateAlignedLoad(row_type, w.bytes(from, row_bytes), llvm::Align(2));
        Value* to = w.bytes(f->getArg(3), b.CreateMul(n, w.index(kPairBytes)));
        for (int half = 0; half < 2; ++half) {
            llvm::SmallVector<int, 32> mask;
            for (int i = 0; i < 32; ++i) mask.push_back(i % 2 * 32 + half * 16 + i / 2);
            b.CreateAlignedStore(b.CreateShuffleVector(first, second, mask),
                                 w.bytes(to, half * kPairBytes / 2), llvm::Align(64));
        }
    });
    // Zeros to the end of the step.
    Value* all = b.CreateMul(w.step_count(f->getArg(2)), w.index(kMatrixStep / 2));
    emit_loop(b, "zero", pairs, all, [&](Value* n) {
        Value* to = w.bytes(f->getArg(3), b.CreateMul(n, w.index(kPairBytes)));
        for (int half = 0; half < 2; ++half)
            b.CreateAlignedStore(llvm::Constant::getNullValue(w.words),
                                 w.bytes(to, half * kPairBytes / 2), llvm::Align(64));
    });
    b.CreateRetVoid();
    return f;
}

}  // namespace ingot::codegen
