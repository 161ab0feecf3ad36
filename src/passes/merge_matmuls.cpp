// Matmuls that share their left side and have frozen right sides become one wide matmul and slices:
// the query, key and value projections of a transformer read their input once.
//
// Biases behind the products go along, so that the wide product keeps its epilogue.
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

struct Member {
    NodeId matmul;
    NodeId add = kNone;    // the bias behind it
    ValueId bias = kNone;  // one number a column
    ValueId result;        // of the add, or of the matmul
};
struct Group {
    std::vector<Member> members;
    bool emitted = false;
};

class Merger {
  public:
    Merger(const Graph& g, const PassContext& context)
        : old_(g),
          context_(context),
          frozen_(frozen_values(g)),
          uses_(use_counts(g)),
          user_(g.values().size(), kNone),
          group_of_(g.nodes().size(), nullptr),
          skip_(g.nodes().size(), false),
          rewriter_(g) {
        for (NodeId id = 0; id < g.nodes().size(); ++id)
            for (ValueId v : g.node(id).operands) user_[v] = id;
    }

    Graph run() {
        for (NodeId id = 0; id < old_.nodes().size(); ++id) {
            const Node& n = old_.node(id);
            if (!is_candidate(n)) continue;
            Member m = member(id);
            auto key = std::tuple(n.operands[0], old_.type(n.results[0]).dtype, m.add != kNone);
            groups_[key].members.push_back(m);
        }
        bool merges = false;
        for (auto& [key, group] : groups_) {
            if (group.members.size() < 2) continue;
            merges = true;
            for (const Member& m : group.members) {
                group_of_[m.matmul] = &group;
                if (m.add != kNone) skip_[m.add] = true;
            }
        }
        return merges ? rewrite() : old_;
    }

  private:
    bool is_candidate(const Node& n) const {
        if (n.prim != Prim::Matmul || !frozen_[n.operands[1]] || frozen_[n.operands[0]])
            return false;
        const Sizes& left = old_.type(n.operands[0]).sizes;
        return left.size() == 2 && known_le(left[0], context_.merge_rows) == true;
    }

    Member member(NodeId id) const {
        ValueId product = old_.node(id).results[0];
        Member m{id, kNone, kNone, product};
        NodeId at = user_[product];
        if (uses_[product] != 1 || at == kNone || old_.node(at).prim != Prim::Add) return m;
        const Node& add = old_.node(at);
        const Node* spread = old_.producer(add.operands[add.operands[0] == product ? 1 : 0]);
        if (spread == nullptr || spread->prim != Prim::Broadcast ||
            spread->attrs.get<Ints>("dims") != Ints{1} || !frozen_[spread->operands[0]])
            return m;
        // A size of 1 stands for every column, which a concatenation does not say.
        if (!(old_.type(spread->operands[0]).sizes[0] == old_.type(product).sizes[1])) return m;
        return {id, at, spread->operands[0], add.results[0]};
    }

    bool is_frozen(NodeId id) const {
        const Node& n = old_.node(id);
        return !n.results.empty() && frozen_[n.results[0]];
    }

    // Frozen nodes depend on frozen nodes alone: they may all stand first, where every group finds
    // its right sides.
    Graph rewrite() {
        for (NodeId id = 0; id < old_.nodes().size(); ++id)
            if (is_frozen(id)) rewriter_.copy(id);
        for (NodeId id = 0; id < old_.nodes().size(); ++id) {
            if (is_frozen(id) || skip_[id]) continue;
            Group* group = group_of_[id];
            if (group == nullptr) {
                rewriter_.copy(id);
            } else if (!group->emitted) {
                emit(*group);
                group->emitted = true;
            }
        }
        return rewriter_.finish();
    }

    void emit(const Group& group) {
        Graph& g = rewriter_.out();
        const Node& first = old_.node(group.members[0].matmul);
        std::vector<ValueId> sides, biases;
        for (const Member& m : group.members) {
            sides.push_back(rewriter_(old_.node(m.matmul).operands[1]));
            if (m.bias != kNone) biases.push_back(rewriter_(m.bias));
        }
        ValueId wide = g.emit(Prim::Concat, sides, {{"dim", std::int64_t{1}}}, first.origin);
        ValueId all = g.emit(Prim::Matmul, {rewriter_(first.operands[0]), wide}, {}, first.origin);
        if (!biases.empty()) {
            ValueId bias = g.emit(Prim::Concat, biases, {{"dim", std::int64_t{0}}}, first.origin);
            bias = g.emit(Prim::Broadcast, {bias},
                          {{"sizes", g.type(all).sizes}, {"dims", Ints{1}}}, first.origin);
            all = g.emit(Prim::Add, {all, bias}, {}, first.origin);
        }
        Expr begin = 0;
        for (const Member& m : group.members) {
            const Type& type = old_.type(m.result);
            Expr end = begin + type.sizes[1];
            NodeId part = g.add_with_types(Prim::Slice, {all},
                                           {{"starts", Sizes{0, begin}},
                                            {"ends", Sizes{type.sizes[0], end}},
                                            {"steps", Ints{1, 1}}},
                                           {type}, old_.node(m.matmul).origin);
            rewriter_.map(m.result, g.node(part).results[0]);
            begin = end;
        }
    }

    const Graph& old_;
    const PassContext& context_;
    std::vector<bool> frozen_;
    std::vector<int> uses_;
    std::vector<NodeId> user_;
    std::map<std::tuple<ValueId, DType, bool>, Group> groups_;
    std::vector<Group*> group_of_;
    std::vector<bool> skip_;
    Rewriter rewriter_;
};

}  // namespace

Graph merge_matmuls(const Graph& graph, const PassContext& context) {
    return Merger(graph, context).run();
}

}  // namespace ingot
