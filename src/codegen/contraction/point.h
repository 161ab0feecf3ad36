// Scalar computations of a contraction at one point, or at a vector of neighbouring points along
// one loop: its operands where they are not plain loads, the masks of a convolution's padding, and
// the epilogue. Writes LLVM IR at the builder's insertion point.
#pragma once
#include <llvm/IR/IRBuilder.h>

#include <map>
#include <vector>

#include "codegen/llvm/target.h"
#include "schedule/nest.h"

namespace ingot::codegen {

/// Values of symbols: i64.
using SymbolValues = std::map<const ExprNode*, llvm::Value*>;

/// The integer `e` as i64. A symbol bound to a vector makes the result a vector.
llvm::Value* emit_expr(llvm::IRBuilder<>& b, Expr e, const SymbolValues& symbols);

/// Row-major decomposition of `flat` into the loops' variables, which are added to `symbols`.
void bind_loops(llvm::IRBuilder<>& b, llvm::Value* flat, const std::vector<Loop>& loops,
                SymbolValues& symbols);

/// What one step of `symbol` adds to `e`, seen over `lanes` aligned steps; nothing if that differs
/// from step to step. Understands `n // 64` and `n % 64` where 64 is a multiple of the lanes.
std::optional<Expr> vector_stride(Expr e, Expr symbol, int lanes);

class PointEmitter {
  public:
    struct Buffers {
        const Kernel& kernel;
        std::vector<llvm::Value*> pointers;  // by kernel buffer
        llvm::Value* error = nullptr;
    };

    PointEmitter(llvm::IRBuilder<>& b, const TargetInfo& target, const Buffers& buffers,
                 bool round_intermediates)
        : b_(b), target_(target), buffers_(buffers), round_(round_intermediates) {}

    /// Points are lanes of vectors along `symbol` (whose value is lane 0's, a multiple of `lanes`);
    /// lanes where `mask` (<lanes x i1>, or null) fails touch no memory.
    void vectorize(Expr symbol, int lanes, llvm::Value* mask) {
        symbol_ = symbol;
        lanes_ = lanes;
        mask_ = mask;
    }
    SymbolValues& symbols() { return symbols_; }
    llvm::Value* accumulator = nullptr;

    /// The values of all insts, in the compute type of their dtypes (bool: i1).
    std::vector<llvm::Value*> emit(const std::vector<Inst>& insts);
    /// The value of `id` and what it needs, nothing else.
    llvm::Value* emit_one(const std::vector<Inst>& insts, InstId id);
    void store(const Store& store, const std::vector<llvm::Value*>& values, DType value_dtype);

  private:
    llvm::Type* type(DType dtype) const;
    llvm::Type* memory_type(DType dtype) const;
    llvm::Type* vector(llvm::Type* element) const;
    llvm::Value* splat(llvm::Value* v) const;
    llvm::Value* lane_offsets(Expr offset);
    llvm::Value* both(llvm::Value* x, llvm::Value* y);
    llvm::Value* load(const Inst& inst, llvm::Value* mask);
    llvm::Value* from_memory(llvm::Value* v, DType dtype);
    llvm::Value* to_memory(llvm::Value* v, DType dtype);
    llvm::Value* convert(llvm::Value* v, DType from, DType to);
    llvm::Value* rounded(llvm::Value* v, DType dtype);
    llvm::Value* constant(const Scalar& value, DType dtype);
    llvm::Value* inst(const std::vector<Inst>& insts, const Inst& inst,
                      const std::vector<llvm::Value*>& values);
    llvm::Value* prim(const std::vector<Inst>& insts, const Inst& inst,
                      const std::vector<llvm::Value*>& x);

    llvm::IRBuilder<>& b_;
    const TargetInfo& target_;
    const Buffers& buffers_;
    bool round_;
    SymbolValues symbols_;
    Expr symbol_;
    int lanes_ = 0;
    llvm::Value* mask_ = nullptr;
};

}  // namespace ingot::codegen
