// Internal to the simplify pass: what a rule sees.
//
// A rule is given a node over values of the new graph and returns the value that replaces its
// result, or nothing. What rules emit is simplified in turn, so each rule states one step.
#pragma once
#include <optional>

#include "passes/facts.h"

namespace ingot::simplify_rules {

class Emitter;

struct Site {
    Prim prim;
    const std::vector<ValueId>& x;  // operands, in the new graph
    const Attrs& attrs;
    const Type& type;  // of the (only) result
    Emitter& out;
};

class Emitter {
  public:
    explicit Emitter(Graph& g) : g_(g) {}

    /// Adds a node, or what it simplifies to.
    ValueId emit(Prim prim, std::vector<ValueId> x, Attrs attrs = {});
    ValueId full(const Type& type, Scalar value) { return emit_full(g_, type, value, origin); }
    const Graph& graph() const { return g_; }
    const Type& type(ValueId v) const { return g_.type(v); }
    const Node* producer(ValueId v) const { return g_.producer(v); }
    /// The producer of v, if it is this prim.
    const Node* made_by(ValueId v, Prim prim) const {
        const Node* n = g_.producer(v);
        return n != nullptr && n->prim == prim ? n : nullptr;
    }
    std::optional<Num> number(ValueId v) const { return full_number(g_, v); }

    std::string origin;  // of the node being simplified

  private:
    Graph& g_;
};

/// Algebra on numbers; exact in the sense of simplify.cpp.
std::optional<ValueId> pointwise(const Site& s);
/// Movement of movement, and movement that moves nothing.
std::optional<ValueId> movement(const Site& s);
/// Reductions over nothing.
std::optional<ValueId> reduction(const Site& s);

}  // namespace ingot::simplify_rules
