// Matmuls that share their left side and have frozen right sides become one wide matmul and slices:
// the query, key and value projections of a transformer read their input once.
//
// Profitable where rows are few (PassContext::merge_rows): there the time is the weights' way
// through memory and the starting of kernels. With many rows each product keeps its own epilogue
// instead. Linear.
#include <map>
#include <tuple>

#include "passes/facts.h"
#include "passes/passes.h"

namespace ingot {

namespace {

struct Group {
    std::vector<NodeId> members;
    bool emitted = false;
};

bool is_candidate(const Graph& g, const Node& n, const std::vector<bool>& frozen,
                  const PassContext& context) {
    if (n.prim != Prim::Matmul || !frozen[n.operands[1]] || frozen[n.operands[0]]) return false;
    const Sizes& left = g.type(n.operands[0]).sizes;
    if (left.size() != 2) return false;
    return known_le(left[0], context.merge_rows) == true;
}

void emit(const Graph& old, Rewriter& rewriter, const Group& group) {
    Graph& g = rewriter.out();
    const Node& first = old.node(group.members[0]);
    std::vector<ValueId> sides;
    for (NodeId id : group.members) sides.push_back(rewriter(old.node(id).operands[1]));
    ValueId wide = g.emit(Prim::Concat, sides, {{"dim", std::int64_t{1}}}, first.origin);
    ValueId all = g.emit(Prim::Matmul, {rewriter(first.operands[0]), wide}, {}, first.origin);
    Expr begin = 0;
    for (NodeId id : group.members) {
        const Node& n = old.node(id);
        const Type& type = old.type(n.results[0]);
        Expr end = begin + type.sizes[1];
        NodeId part = g.add_with_types(Prim::Slice, {all},
                                       {{"starts", Sizes{0, begin}},
                                        {"ends", Sizes{type.sizes[0], end}},
                                        {"steps", Ints{1, 1}}},
                                       {type}, n.origin);
        rewriter.map(n.results[0], g.node(part).results[0]);
        begin = end;
    }
}

}  // namespace

Graph merge_matmuls(const Graph& graph, const PassContext& context) {
    const std::vector<bool> frozen = frozen_values(graph);
    std::map<std::pair<ValueId, DType>, Group> groups;
    std::vector<Group*> group_of(graph.nodes().size(), nullptr);
    for (NodeId id = 0; id < graph.nodes().size(); ++id) {
        const Node& n = graph.node(id);
        if (!is_candidate(graph, n, frozen, context)) continue;
        Group& group = groups[{n.operands[0], graph.type(n.results[0]).dtype}];
        group.members.push_back(id);
        group_of[id] = &group;
    }
    bool merges = false;
    for (auto& [side, group] : groups) merges = merges || group.members.size() > 1;
    if (!merges) return graph;
    Rewriter rewriter(graph);
    // Frozen nodes depend on frozen nodes alone: they may all stand first, where every group finds
    // its right sides.
    auto is_frozen = [&](NodeId id) {
        const Node& n = graph.node(id);
        return !n.results.empty() && frozen[n.results[0]];
    };
    for (NodeId id = 0; id < graph.nodes().size(); ++id)
        if (is_frozen(id)) rewriter.copy(id);
    for (NodeId id = 0; id < graph.nodes().size(); ++id) {
        if (is_frozen(id)) continue;
        Group* group = group_of[id];
        if (group == nullptr || group->members.size() < 2) {
            rewriter.copy(id);
        } else if (!group->emitted) {
            emit(graph, rewriter, *group);
            group->emitted = true;
        }
    }
    return rewriter.finish();
}

}  // namespace ingot
