// Small things that the writers of matrix units' functions share. Internal to this folder.
#pragma once
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Intrinsics.h>
#include <llvm/IR/IntrinsicsX86.h>

#include <cstdint>

#include "codegen/contraction/ir_loop.h"
#include "codegen/contraction/matrix_kernel.h"

namespace ingot::codegen {

/// Constants, addresses, masks and tile registers, for vectors of 16 words of 32 bits.
struct MatrixWriter {
    static constexpr unsigned kLanes = 16;

    explicit MatrixWriter(llvm::LLVMContext& context)
        : b(context),
          floats(llvm::FixedVectorType::get(b.getFloatTy(), kLanes)),
          words(llvm::FixedVectorType::get(b.getInt32Ty(), kLanes)) {}

    llvm::Value* index(std::int64_t v) { return b.getInt64(static_cast<std::uint64_t>(v)); }
    llvm::Value* bytes(llvm::Value* base, llvm::Value* offset) {
        return b.CreateGEP(b.getInt8Ty(), base, offset);
    }
    llvm::Value* bytes(llvm::Value* base, std::int64_t offset) {
        return bytes(base, index(offset));
    }
    llvm::Value* load(llvm::Value* at, llvm::Value* mask = nullptr) {
        const llvm::Align align(4);
        if (!mask) return b.CreateAlignedLoad(floats, at, align);
        return b.CreateMaskedLoad(floats, at, align, mask, llvm::Constant::getNullValue(floats));
    }
    /// lane < left
    llvm::Value* lanes_below(llvm::Value* left) {
        llvm::SmallVector<llvm::Constant*, 16> iota;
        for (unsigned n = 0; n < kLanes; ++n) iota.push_back(b.getInt64(n));
        return b.CreateICmpSLT(llvm::ConstantVector::get(iota), b.CreateVectorSplat(kLanes, left));
    }
    llvm::Value* step_count(llvm::Value* k) {
        return b.CreateUDiv(b.CreateAdd(k, index(kMatrixStep - 1)), index(kMatrixStep));
    }
    /// Fetches the line at `at` into the second cache.
    void prefetch(llvm::Value* at) {
        b.CreateIntrinsic(llvm::Intrinsic::prefetch, {b.getPtrTy()},
                          {at, b.getInt32(0), b.getInt32(2), b.getInt32(1)});
    }

    /// What a kernel fetches in a step: `count` pairs of lines, the first at `next`, each
    /// `distance` bytes behind the one before; in the next step `step_distance` bytes further.
    void prefetch_ahead(llvm::Value* step, llvm::Value* next, llvm::Value* count,
                        llvm::Value* distance, llvm::Value* step_distance) {
        llvm::Value* first = bytes(next, b.CreateMul(step, step_distance));
        emit_loop(b, "ahead", index(0), count, [&](llvm::Value* n) {
            llvm::Value* line = bytes(first, b.CreateMul(n, distance));
            prefetch(line);
            prefetch(bytes(line, 64));
        });
    }

    llvm::Value* tile(int n) { return b.getInt8(static_cast<std::uint8_t>(n)); }
    void tile_zero(int n) { b.CreateIntrinsic(llvm::Intrinsic::x86_tilezero, {}, {tile(n)}); }
    void tile_load(int n, llvm::Value* from, std::int64_t row_bytes) {
        b.CreateIntrinsic(llvm::Intrinsic::x86_tileloadd64, {}, {tile(n), from, index(row_bytes)});
    }
    void tile_store(int n, llvm::Value* to, std::int64_t row_bytes) {
        b.CreateIntrinsic(llvm::Intrinsic::x86_tilestored64, {}, {tile(n), to, index(row_bytes)});
    }
    /// sums += a * b
    void tile_multiply(int sums, int left, int right) {
        b.CreateIntrinsic(llvm::Intrinsic::x86_tdpbf16ps, {},
                          {tile(sums), tile(left), tile(right)});
    }

    llvm::IRBuilder<> b;
    llvm::FixedVectorType* floats;
    llvm::FixedVectorType* words;
};

}  // namespace ingot::codegen
