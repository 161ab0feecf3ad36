// Scalar computations of a contraction at one point, or at a vector of neighbouring points along
// one loop: its operands where they are not plain loads, the masks of a convolution's padding, and
// the epilogue. Writes LLVM IR at the builder's insertion point.
#pragma once
#include <llvm/IR/IRBuilder.h>

#include <map>
#include <vector>

#include "codegen/llvm/emit_body.h"
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

/// The loops' variables of one point after another: divisions find the first point's, and from one
/// point to the next they are counted on like an odometer.
class Odometer {
  public:
    explicit Odometer(const std::vector<Loop>& loops) : loops_(loops) {}

    /// Those of point `flat`.
    std::vector<llvm::Value*> start(llvm::IRBuilder<>& b, llvm::Value* flat,
                                    const SymbolValues& symbols) const;
    void bind(const std::vector<llvm::Value*>& at, SymbolValues& symbols) const;
    /// Those of the point behind `at`. Behind the last point the outermost one is its extent.
    std::vector<llvm::Value*> next(llvm::IRBuilder<>& b, const std::vector<llvm::Value*>& at,
                                   const SymbolValues& symbols) const;

  private:
    const std::vector<Loop>& loops_;
};

class PointEmitter {
  public:
    struct Buffers {
        std::vector<BufferRef> list;  // by kernel buffer
        llvm::Value* error = nullptr;
    };

    PointEmitter(llvm::IRBuilder<>& b, const TargetInfo& target, const Buffers& buffers,
                 bool round_intermediates);

    SymbolValues symbols;
    /// Points are lanes of vectors along `symbol` (whose value is lane 0's, a multiple of
    /// `lanes`); lanes where `mask` (<lanes x i1>, or null) fails touch no memory.
    void vectorize(Expr symbol, int lanes, llvm::Value* mask);
    llvm::Value* accumulator = nullptr;

    /// Computes all insts; `value` has their results, `store` uses them.
    void emit(const std::vector<Inst>& insts);
    /// The value of `id`, computing what it needs and nothing else.
    llvm::Value* emit_one(const std::vector<Inst>& insts, InstId id);
    /// A scalar where it is the same in all lanes.
    llvm::Value* value(InstId id) const { return body_.value(id).re; }
    void store(const Store& store) { body_.store(store); }

  private:
    void begin(const std::vector<Inst>& insts);

    EmitContext context_;
    IndexEmitter index_;
    BodyEmitter body_;
    bool round_;
    Expr symbol_;
    int lanes_ = 0;
    llvm::Value* mask_ = nullptr;
};

}  // namespace ingot::codegen
