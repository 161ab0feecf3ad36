// Loads and stores of lanes: contiguous, reversed, strided, gathered, masked, atomic; complex
// numbers as interleaved pairs. Between index expressions and bodies.
#pragma once
#include <optional>

#include "codegen/llvm/emit_types.h"

namespace ingot::codegen {

struct BufferRef {
    IrValue pointer = nullptr;
    DType dtype = DType::F32;
    /// Every lane has elements of its own (scratch of a nest whose points are lanes): element e of
    /// lane l lies at e * lanes + l.
    bool per_lane = false;
    /// Set: whole vectors may be stored past the caches where this (i1: the pointer is a multiple
    /// of 64) holds.
    IrValue streamable = nullptr;
    /// Bytes that are known to divide the pointer; 0: only what the type needs.
    std::uint64_t alignment = 0;
    /// Elements from the pointer on that may be read at any time. Loads under a mask that is one
    /// for all lanes then read these where it fails, instead of branching: others need not wait.
    std::int64_t readable = 0;
};

/// Lets whole vectors be stored to the buffer past the caches, where its pointer allows it.
void make_streamable(llvm::IRBuilder<>& b, BufferRef& buffer);

/// Where the lanes of an access lie, in elements from the buffer's start.
struct Address {
    IrValue base = nullptr;              // i64, of lane 0
    std::optional<std::int64_t> stride;  // from lane to lane; nothing: `offsets` says
    IrValue offsets = nullptr;           // vector of integers, added to base
    std::int64_t alignment = 1;          // elements that are known to divide base; 0: base is 0
};

/// `lanes` elements (a scalar for 0 stride or 1 lane). `mask`: null, i1 or a vector of it; where it
/// fails memory is not touched and the result is anything.
Lanes emit_load(EmitContext& c, const BufferRef& buffer, const Address& at, IrValue mask,
                unsigned lanes);

/// Stores `value` (a scalar for 1 lane, else a vector), rounding to the buffer's type. `streaming`:
/// null, or an i1 that says that the address is a multiple of 64 and the caches are not wanted.
void emit_store(EmitContext& c, const BufferRef& buffer, const Address& at, Lanes value,
                IrValue mask, unsigned lanes, IrValue streaming = nullptr);

/// Adds `value` atomically, lane after lane.
void emit_atomic_add(EmitContext& c, const BufferRef& buffer, const Address& at, Lanes value,
                     IrValue mask, unsigned lanes);

/// An alloca in the function's entry block.
IrValue entry_alloca(llvm::IRBuilder<>& b, llvm::Type* type, const char* name = "");

/// if (condition) body(); the builder stands behind it afterwards.
template <typename Body>
void emit_if(llvm::IRBuilder<>& b, IrValue condition, Body&& body) {
    llvm::Function* function = b.GetInsertBlock()->getParent();
    auto* then = llvm::BasicBlock::Create(b.getContext(), "then", function);
    auto* after = llvm::BasicBlock::Create(b.getContext(), "after", function);
    b.CreateCondBr(condition, then, after);
    b.SetInsertPoint(then);
    body();
    b.CreateBr(after);
    b.SetInsertPoint(after);
}

/// if (condition) body(); else other();
template <typename Body, typename Other>
void emit_if_else(llvm::IRBuilder<>& b, IrValue condition, Body&& body, Other&& other) {
    llvm::Function* function = b.GetInsertBlock()->getParent();
    auto* then = llvm::BasicBlock::Create(b.getContext(), "then", function);
    auto* otherwise = llvm::BasicBlock::Create(b.getContext(), "else", function);
    auto* after = llvm::BasicBlock::Create(b.getContext(), "after", function);
    b.CreateCondBr(condition, then, otherwise);
    b.SetInsertPoint(then);
    body();
    b.CreateBr(after);
    b.SetInsertPoint(otherwise);
    other();
    b.CreateBr(after);
    b.SetInsertPoint(after);
}

/// for (i = begin; i < end; i += step) body(i), all i64.
template <typename Body>
void emit_for(llvm::IRBuilder<>& b, const char* name, IrValue begin, IrValue end, std::int64_t step,
              Body&& body) {
    llvm::Function* function = b.GetInsertBlock()->getParent();
    llvm::BasicBlock* before = b.GetInsertBlock();
    auto* loop = llvm::BasicBlock::Create(b.getContext(), name, function);
    auto* after = llvm::BasicBlock::Create(b.getContext(), "after", function);
    b.CreateCondBr(b.CreateICmpSLT(begin, end), loop, after);
    b.SetInsertPoint(loop);
    llvm::PHINode* i = b.CreatePHI(b.getInt64Ty(), 2, name);
    i->addIncoming(begin, before);
    body(static_cast<IrValue>(i));
    IrValue next = b.CreateAdd(i, b.getInt64(static_cast<std::uint64_t>(step)), "", true, true);
    i->addIncoming(next, b.GetInsertBlock());
    b.CreateCondBr(b.CreateICmpSLT(next, end), loop, after);
    b.SetInsertPoint(after);
}

}  // namespace ingot::codegen
