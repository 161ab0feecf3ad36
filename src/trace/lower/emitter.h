// Short names for the prims that lowerings emit, and the rules of strides.
#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "trace/dtypes.h"

namespace ingot::trace {

class Emitter {
  public:
    Emitter(Graph& graph, SymbolicSizes& symbols, const std::string& origin)
        : graph_(graph), symbols_(symbols), origin_(origin) {}

    Graph& graph() { return graph_; }
    const Type& type(ValueId v) const { return graph_.type(v); }
    DType dtype(ValueId v) const { return graph_.type(v).dtype; }
    SymInts sizes(ValueId v) const { return symbols_.wrap(graph_.type(v).sizes); }
    std::int64_t rank(ValueId v) const { return graph_.type(v).rank(); }

    ValueId op(Prim prim, std::vector<ValueId> operands, Attrs attrs = {}) {
        if (symbols_.any()) check_sizes(prim, operands, attrs);
        return graph_.emit(prim, std::move(operands), std::move(attrs), origin_);
    }
    /// All results of a prim with several.
    std::vector<ValueId> ops(Prim prim, std::vector<ValueId> operands, Attrs attrs = {}) {
        if (symbols_.any()) check_sizes(prim, operands, attrs);
        return graph_.node(graph_.add(prim, std::move(operands), std::move(attrs), origin_))
            .results;
    }

    ValueId convert(ValueId v, DType dtype);
    /// f8, f16 and bf16 to f32; other types unchanged.
    ValueId widen(ValueId v) { return convert(v, compute_type(dtype(v))); }
    ValueId full(DType dtype, const SymInts& sizes, const Scalar& value);
    /// The number `n` is, as a value of 0 dims; for symbolic sizes in arithmetic.
    ValueId size_value(DType dtype, const c10::SymInt& n);
    /// The same in the type and sizes of `v`.
    ValueId size_like(ValueId v, const c10::SymInt& n);
    /// A number in the type and sizes of `v`.
    ValueId number(ValueId v, double value) { return full_like(v, dtype(v), value); }
    ValueId full_like(ValueId v, DType dtype, double value);
    /// Broadcast by PyTorch's rule (trailing dims aligned); no node when the sizes are equal.
    ValueId expand(ValueId v, const SymInts& sizes);
    ValueId reshape(ValueId v, const SymInts& sizes);
    ValueId permute(ValueId v, const Ints& dims);
    ValueId transpose(ValueId v, std::int64_t a, std::int64_t b);
    /// A part of one dim: start, start + step, ... below end.
    ValueId slice(ValueId v, std::int64_t dim, const c10::SymInt& start, const c10::SymInt& end,
                  std::int64_t step = 1);
    ValueId select(ValueId v, std::int64_t dim, const c10::SymInt& index);
    /// `v` with a dim of size 1 inserted at `dim`.
    ValueId unsqueeze(ValueId v, std::int64_t dim);
    ValueId pad(ValueId v, const SymInts& low, const SymInts& high, const Scalar& value);
    ValueId iota(DType dtype, const SymInts& sizes, std::int64_t dim, const Scalar& start = 0,
                 const Scalar& step = 1);

    ValueId add(ValueId a, ValueId b) { return op(Prim::Add, {a, b}); }
    ValueId sub(ValueId a, ValueId b) { return op(Prim::Sub, {a, b}); }
    ValueId mul(ValueId a, ValueId b) { return op(Prim::Mul, {a, b}); }
    ValueId div(ValueId a, ValueId b) { return op(Prim::Div, {a, b}); }
    ValueId add(ValueId a, double b) { return add(a, number(a, b)); }
    ValueId add(ValueId a, int b) { return add(a, number(a, b)); }
    ValueId sub(ValueId a, double b) { return sub(a, number(a, b)); }
    ValueId sub(ValueId a, int b) { return sub(a, number(a, b)); }
    ValueId mul(ValueId a, double b) { return mul(a, number(a, b)); }
    ValueId mul(ValueId a, int b) { return mul(a, number(a, b)); }
    ValueId div(ValueId a, double b) { return div(a, number(a, b)); }
    ValueId div(ValueId a, const c10::SymInt& b) { return div(a, size_like(a, b)); }
    ValueId div(ValueId a, int b) { return div(a, number(a, b)); }
    ValueId select(ValueId condition, ValueId yes, ValueId no) {
        return op(Prim::Select, {condition, yes, no});
    }
    ValueId compare(Prim prim, ValueId a, double b) { return op(prim, {a, number(a, b)}); }
    /// Reduces `dims` (not wrapped dims; empty: none) and, with `keep`, leaves sizes of 1.
    ValueId reduce(Prim prim, ValueId v, const Ints& dims, bool keep, Attrs more = {});
    /// `reduced` (of `dims` of something with `sizes`) repeated along the reduced dims.
    ValueId spread(ValueId reduced, const Ints& dims, const SymInts& sizes);

  private:
    /// Guards the equalities of sizes that the prim takes for granted. Throws UserError where one
    /// does not hold.
    void check_sizes(Prim prim, const std::vector<ValueId>& operands, const Attrs& attrs);

    Graph& graph_;
    SymbolicSizes& symbols_;
    const std::string& origin_;
};

// ---- strides ----
struct Layout {
    SymInts sizes, strides;
};
SymInts contiguous(const SymInts& sizes);
/// Strides of a memory format that has just been asked for (not Preserve).
SymInts format_strides(const SymInts& sizes, c10::MemoryFormat format);
/// Strides TensorIterator gives an output of `shape` computed from operands with these layouts.
SymInts iterator_strides(const SymInts& shape, std::span<const Layout> operands);
/// What empty_like with Preserve gives: the same strides if dense, else like TensorIterator's.
SymInts preserved_strides(const Layout& layout);
bool is_dense(const Layout& layout);
bool is_contiguous(const Layout& layout, c10::MemoryFormat format = c10::MemoryFormat::Contiguous);
/// Tensor::suggest_memory_format.
c10::MemoryFormat suggested_format(const Layout& layout);
SymInts broadcast_sizes(const SymInts& a, const SymInts& b);
c10::SymInt numel(const SymInts& sizes);

}  // namespace ingot::trace
