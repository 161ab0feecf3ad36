// Internal to the shape rules (shape*.cpp): what a rule sees and how it complains.
//
// infer_types (shape.cpp) checks what all prims of a kind share, and hands the prims whose rule is
// Custom to one of the family functions below. A size is wrong only when it is known to differ;
// symbolic sizes whose equality is undecided pass (tracing has guarded what it relied on).
#pragma once
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ir/graph.h"

namespace ingot::shape {

/// One prim being typed.
struct Rule {
    Prim prim;
    std::span<const Type> operands;
    const Attrs& attrs;
    std::vector<std::pair<Expr, Expr>>* assumed = nullptr;  // gets the undecided equalities

    [[noreturn]] void fail(const std::string& what) const {
        throw InternalError(std::string(name(prim)) + ": " + what);
    }
    void require(bool ok, const char* what) const {
        if (!ok) fail(what);
    }
    const Type& operand(std::size_t i) const { return operands[i]; }
    const Sizes& sizes(std::size_t i) const { return operands[i].sizes; }
    int rank(std::size_t i) const { return operands[i].rank(); }

    template <class T>
    const T& attr(std::string_view key) const {
        return attrs.get<T>(key);
    }
    const Ints& ints(std::string_view key) const { return attrs.get<Ints>(key); }
    const Sizes& size_list(std::string_view key) const { return attrs.get<Sizes>(key); }

    /// Fails when the sizes are known to differ.
    void require_equal(Expr a, Expr b, const char* what) const {
        const std::optional<bool> equal = known_eq(a, b);
        if (equal == false) fail(std::string(what) + ": " + to_string(a) + " and " + to_string(b));
        if (!equal && assumed != nullptr) assumed->emplace_back(a, b);
    }
    void require_equal(const Sizes& a, const Sizes& b, const char* what) const {
        if (a.size() != b.size()) fail(std::string(what) + ": different ranks");
        for (std::size_t i = 0; i < a.size(); ++i) require_equal(a[i], b[i], what);
    }
    /// The attribute `key` as a dim of a tensor of `rank` dims.
    std::size_t dim(std::string_view key, int rank) const {
        std::int64_t d = attrs.get<std::int64_t>(key);
        if (d < 0 || d >= rank)
            fail(std::string(key) + "=" + std::to_string(d) + " is no dim of rank " +
                 std::to_string(rank));
        return static_cast<std::size_t>(d);
    }
    /// The attribute `key` as distinct dims of a tensor of `rank` dims: flags by dim.
    std::vector<bool> dim_set(std::string_view key, int rank) const {
        std::vector<bool> set(static_cast<std::size_t>(rank), false);
        for (std::int64_t d : ints(key)) {
            if (d < 0 || d >= rank)
                fail(std::string(key) + " holds " + std::to_string(d) + ", no dim of rank " +
                     std::to_string(rank));
            if (set[static_cast<std::size_t>(d)]) fail(std::string(key) + " names a dim twice");
            set[static_cast<std::size_t>(d)] = true;
        }
        return set;
    }
    void require_index(std::size_t i) const {
        require(is_int(operand(i).dtype), "indices must be integers");
    }
    void require_same_dtype(std::size_t i, std::size_t j) const {
        if (operand(i).dtype != operand(j).dtype)
            fail("operands have different types: " + std::string(name(operand(i).dtype)) + " and " +
                 std::string(name(operand(j).dtype)));
    }
    /// Operand 0's device, the CPU without operands.
    Device device() const { return operands.empty() ? Device{} : operands[0].device; }
    Type make(DType dtype, Sizes sizes) const { return {dtype, std::move(sizes), device()}; }
    /// One result of operand 0's element type.
    std::vector<Type> same(Sizes sizes) const {
        return {make(operands[0].dtype, std::move(sizes))};
    }
};

/// The family rules; each returns the result types of the prims of its family with a Custom shape.
std::vector<Type> movement(const Rule& r);
std::vector<Type> indexing(const Rule& r);
std::vector<Type> contraction(const Rule& r);
std::vector<Type> other(const Rule& r);

}  // namespace ingot::shape
