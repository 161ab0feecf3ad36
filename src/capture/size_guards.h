// The symbolic sizes of a segment: where their numbers come from, for which ones it is valid, and
// the integers that a replay computes from them.
//
// Filled by the recorder, checked with the segment's other guards. Cost: some 10 ns a symbolic
// tensor when the sizes are the last call's, else about 50 ns a relation.
#pragma once
#include <Python.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "capture/float_guards.h"
#include "trace/sym_node.h"

namespace ingot::capture {

using SymbolValues = c10::SmallVector<std::int64_t, 6>;

class SizeGuards {
  public:
    explicit SizeGuards(std::shared_ptr<trace::SymbolicSizes> symbols)
        : symbols_(std::move(symbols)) {}

    /// The tensor that is node `node` has these sizes and strides.
    void add_tensor(std::int32_t node, Sizes sizes, Sizes strides);
    /// The integer that is node `node` is this symbol.
    void add_number(std::int32_t node, Expr symbol);
    /// The integer that a float of the segment is, one that was rounded, is this symbol.
    void add_rounded(FloatGuards::Index number, Expr symbol);
    /// An integer that replays compute: its index.
    std::int32_t add_computed(Expr value);
    /// Takes the relations that the recording has decided.
    void close() { relations_ = symbols_->guards(); }

    /// Whether the segment is valid for the nodes' objects; fills the symbols' numbers, and those
    /// of the floats that integers are rounded from.
    bool check(std::span<PyObject* const> nodes, const FloatGuards& floats, SymbolValues& values,
               FloatValues& float_values, std::string* failure);
    std::int64_t computed(std::int32_t index, std::span<const std::int64_t> values) const;
    /// The integers among the nodes, in order.
    void numbers(const SymbolValues& values, SymbolValues& into) const;
    SymbolValues example_numbers() const;
    /// All symbols, in the order in which `check` gives their numbers, and those of the example.
    std::vector<Expr> symbols() const;
    SymbolValues example_values() const;
    /// The node and the dim where the number of a symbol comes from (dim -1: the integer itself).
    std::optional<std::pair<std::int32_t, std::int32_t>> source_of(Expr symbol) const;
    /// The relations as text.
    std::vector<std::string> sentences() const;
    /// Symbols of which the recording has needed the number, also by way of the floats. That some
    /// value that follows from one is needed fixes none where others have it, too.
    std::vector<std::string> specialised(const FloatGuards& floats) const;

  private:
    struct Tensor {
        std::int32_t node;
        Sizes sizes, strides;
        c10::SmallVector<std::int64_t, 6> now;  // both as numbers, for last_
    };
    struct Symbol {
        Expr symbol;
        std::int32_t node, dim;  // dim kInteger: the integer itself, kRounded: float `node`
    };
    static constexpr std::int32_t kInteger = -1, kRounded = -2;
    std::int64_t evaluate(Expr e, std::span<const std::int64_t> values) const;
    void add_symbol(Expr e, std::int32_t node, std::int32_t dim);

    std::shared_ptr<trace::SymbolicSizes> symbols_;
    std::vector<Symbol> sources_;
    std::vector<Tensor> tensors_;
    std::vector<Expr> computed_;
    std::vector<SizeGuard> relations_;
    SymbolValues last_;  // the numbers for which everything held last
};

}  // namespace ingot::capture
