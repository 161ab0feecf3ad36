// Index expressions as machine code, and what they do along a vector. Scalar values are computed at
// lane 0 and shared between equal expressions of a scope; terms of outer loops are added first, so
// that loop-invariant motion takes them out. The analysis says by how much an expression grows from
// lane to lane, seeing through // and % where blocks of lanes cannot straddle a boundary.
// Used by bodies, nests and epilogues; linear in the size of the expressions.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "codegen/llvm/emit_types.h"
#include "ir/expr.h"

namespace ingot::codegen {

class IndexEmitter {
  public:
    explicit IndexEmitter(llvm::IRBuilder<>& b) : b(b) { scopes_.emplace_back(); }

    /// From now on `var` (bound to its value at lane 0, a multiple of `lanes`, or of `alignment`
    /// where given) grows by one from lane to lane. lanes <= 1: there is no vector.
    void set_vector(Expr var, unsigned lanes, std::int64_t alignment = 0);
    void clear_vector();
    unsigned lanes() const { return lanes_; }

    /// Values bound or computed in a scope are forgotten at its end; a loop's body is a scope.
    void enter_scope() { scopes_.emplace_back(); }
    void leave_scope() { scopes_.pop_back(); }

    /// Gives a symbol its value (i64): a scalar, or a vector of the current lanes.
    void bind(Expr symbol, IrValue value);

    /// The value at lane 0. Precondition: no vector-valued symbol in `e`.
    IrValue scalar(Expr e);
    /// Growth from lane to lane (0: uniform), or nothing when it is irregular.
    std::optional<Expr> lane_stride(Expr e) const;
    /// The value in each lane, as i64 (or i32 where `narrow` and every part of `e` fits).
    IrValue vector(Expr e, bool narrow = true);
    /// The largest number known to divide `e` at lane 0; 0 for e == 0.
    std::int64_t alignment(Expr e) const;
    /// 0, 1, 2 ... as a vector of `element` integers.
    static llvm::Constant* iota(llvm::Type* element, unsigned lanes, std::int64_t step = 1);

  private:
    struct Binding {
        IrValue value = nullptr;
        bool symbol = false;
    };
    const Binding* find(const ExprNode* node) const;
    int depth(Expr e) const;
    IrValue compute(const ExprNode& n);
    IrValue sum(const ExprNode& n);
    IrValue vector_of(Expr e, llvm::Type* element);
    IrValue floored(IrValue x, IrValue y, Expr dividend, Expr divisor, bool quotient);
    bool irregular(Expr e) const;

    llvm::IRBuilder<>& b;
    std::vector<std::map<const ExprNode*, Binding>> scopes_;
    Expr var_;
    unsigned lanes_ = 1;
    std::int64_t var_alignment_ = 1;
};

}  // namespace ingot::codegen
