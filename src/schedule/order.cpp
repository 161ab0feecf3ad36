// See order.h.
#include "schedule/order.h"

#include <algorithm>
#include <queue>
#include <tuple>
#include <utility>

#include "passes/call_failures.h"
#include "schedule/estimate.h"
#include "schedule/index.h"

namespace ingot::sched {

namespace {

constexpr double kSmallChange = 4096;    // bytes that an update may need before its turn
constexpr std::size_t kFarthest = 4096;  // groups looked at for a way from one to another
constexpr std::size_t kMostPairs = std::size_t{1} << 18;  // of a call and a write
constexpr double kMostRead = 4;  // times the bytes made: an update's gradient and states

class Orderer {
  public:
    Orderer(const Graph& g, const Placement& p, const Layouts& layouts, const Fusion& f)
        : g_(g), p_(p), layouts_(layouts), f_(f), count_(f.groups.size()) {}

    std::vector<std::uint32_t> run() {
        find_values();
        link();
        keep_old_contents();
        write_behind_calls();
        find_updates();
        return walk();
    }

  private:
    using Values = std::vector<ValueId>;

    static void make_unique(Values& list) {
        std::sort(list.begin(), list.end());
        list.erase(std::unique(list.begin(), list.end()), list.end());
    }

    // An extern step's operand may be a view of what lies in memory.
    ValueId memory_source(ValueId v) const {
        while (p_.home[v] == Home::Inlined && g_.producer(v) != nullptr &&
               is_plain_view(*g_.producer(v)))
            v = g_.producer(v)->operands[0];
        return v;
    }

    void find_values() {
        reads_.resize(count_);
        makes_.resize(count_);
        readers_.resize(g_.values().size());
        makers_.resize(g_.values().size());
        for (std::uint32_t i = 0; i < count_; ++i) {
            const Group& group = f_.groups[i];
            if (group.is_extern) {
                const Node& n = g_.node(group.node);
                for (ValueId v : n.operands) reads_[i].push_back(memory_source(v));
                makes_[i] = n.results;
            }
            for (std::uint32_t a : group.anchors) {
                const Anchor& anchor = f_.anchors[a];
                for (const Read& r : anchor.reads) reads_[i].push_back(r.value);
                if (anchor.stored) makes_[i].push_back(anchor.target);
            }
            make_unique(reads_[i]);
            make_unique(makes_[i]);
            for (ValueId v : reads_[i]) readers_[v].push_back(i);
            for (ValueId v : makes_[i]) makers_[v].push_back(i);
        }
    }

    void link() {
        users_.resize(count_);
        waiting_.assign(count_, 0);
        for (std::uint32_t i = 0; i < count_; ++i) {
            auto needs = f_.groups[i].needs;
            make_unique(needs);
            for (std::uint32_t n : needs) add_edge(n, i);
        }
    }

    void add_edge(std::uint32_t first, std::uint32_t then) {
        users_[first].push_back(then);
        ++waiting_[then];
    }

    // --- writes of inputs ---

    void keep_old_contents() {
        copied_.assign(g_.values().size(), false);
        for (std::uint32_t i = 0; i < count_; ++i)
            for (ValueId v : makes_[i]) {
                const ValueId input = layouts_.written_input(v);
                if (input == kNone) continue;
                // No more than these: what a call gives has memory of its own.
                const std::vector<std::uint32_t>& before = readers_[input];
                for (std::uint32_t r : before)
                    if (r != i) add_edge(r, i);
                // Whoever makes the new contents then may make them in place.
                for (ValueId source : reads_[i]) {
                    copied_[source] = true;
                    if (makers_[source].size() == 1) wait_for(before, makers_[source][0], i);
                }
            }
    }

    static bool may_fail(const Node& n) {
        return n.prim == Prim::Assert ||
               (n.prim == Prim::ExternCall && !never_fails(n.attrs.get<std::string>("callee")));
    }

    // Calls and assertions may fail, and what is written before one that does needs a copy to go
    // back to, made at every run: new contents of inputs, and the elementwise work that makes them,
    // come behind all such calls that do not need them. On GPUs nothing is taken back.
    void write_behind_calls() {
        moved_.assign(count_, false);
        std::vector<std::uint32_t> calls, writes;
        for (std::uint32_t i = 0; i < count_; ++i) {
            const Group& group = f_.groups[i];
            if (group.is_extern && may_fail(g_.node(group.node))) calls.push_back(i);
            if (writes_input(i) && g_.type(makes_[i][0]).device.kind == DeviceKind::Cpu)
                writes.push_back(i);
        }
        if (calls.size() * writes.size() > kMostPairs) return;
        for (std::uint32_t write : writes) {
            come_behind(calls, write);
            for (ValueId source : reads_[write])
                if (makers_[source].size() == 1 && is_elementwise(makers_[source][0]))
                    come_behind(calls, makers_[source][0]);
        }
    }

    void come_behind(const std::vector<std::uint32_t>& calls, std::uint32_t group) {
        if (moved_[group]) return;
        moved_[group] = true;
        for (std::uint32_t call : calls)
            if (!reaches(group, call)) add_edge(call, group);
    }

    // Waiting, it holds little more than what it makes.
    bool is_elementwise(std::uint32_t group) const {
        const Group& f = f_.groups[group];
        if (f.is_extern || f.contracts || f.reduces) return false;
        double reads = 0, makes = 0;
        for (ValueId v : reads_[group]) reads += likely_bytes(g_.type(v));
        for (ValueId v : makes_[group]) makes += likely_bytes(g_.type(v));
        return reads <= kMostRead * makes;
    }

    void wait_for(const std::vector<std::uint32_t>& before, std::uint32_t maker,
                  std::uint32_t copy) {
        for (std::uint32_t r : before)
            if (r != maker && r != copy && !reaches(maker, r)) add_edge(r, maker);
    }

    /// Whether `to` comes after `from`; true if that takes too long to say.
    bool reaches(std::uint32_t from, std::uint32_t to) {
        ++stamp_;
        seen_.resize(count_, 0);
        std::vector<std::uint32_t> stack{from};
        std::size_t found = 1;
        while (!stack.empty()) {
            const std::uint32_t at = stack.back();
            stack.pop_back();
            if (at == to || found > kFarthest) return true;
            for (std::uint32_t user : users_[at]) {
                if (std::exchange(seen_[user], stamp_) == stamp_) continue;
                ++found;
                stack.push_back(user);
            }
        }
        return false;
    }

    bool writes_input(std::uint32_t group) const {
        return std::any_of(makes_[group].begin(), makes_[group].end(),
                           [&](ValueId v) { return layouts_.written_input(v) != kNone; });
    }

    // An update: all that comes of it is written into inputs.
    void find_updates() {
        update_.assign(count_, false);
        std::vector<std::uint32_t> sorted;
        std::vector<int> waiting = waiting_;
        for (std::uint32_t i = 0; i < count_; ++i)
            if (waiting[i] == 0) sorted.push_back(i);
        for (std::size_t at = 0; at < sorted.size(); ++at)
            for (std::uint32_t user : users_[sorted[at]])
                if (--waiting[user] == 0) sorted.push_back(user);
        check(sorted.size() == count_, "fusion has made a cycle");
        find_places(sorted);
        for (std::size_t at = sorted.size(); at-- > 0;) {
            const std::uint32_t i = sorted[at];
            const bool given = std::any_of(makes_[i].begin(), makes_[i].end(), [&](ValueId v) {
                return layouts_.output(v) >= 0 && layouts_.written_input(v) == kNone;
            });
            update_[i] =
                !given && !f_.groups[i].is_extern && !f_.groups[i].frozen &&
                (writes_input(i) ||
                 (!users_[i].empty() && std::all_of(users_[i].begin(), users_[i].end(),
                                                    [&](std::uint32_t u) { return update_[u]; })));
        }
    }

    // A group stands where its first node does, or the first that needs it: a gradient's kernel may
    // hold an update, which needs numbers that the program computes at its end, and what is
    // computed again for others must not all be made before it. What only has to come behind a
    // group does not need it: a count of steps, written behind a call of the backward's end, would
    // draw all that leads to that call before everything else.
    void find_places(const std::vector<std::uint32_t>& sorted) {
        place_.resize(count_);
        for (std::uint32_t i = 0; i < count_; ++i) {
            place_[i] = f_.groups[i].node;
            for (std::uint32_t a : f_.groups[i].anchors)
                place_[i] = std::min(place_[i], f_.anchors[a].node);
        }
        for (std::size_t at = sorted.size(); at-- > 0;)
            for (std::uint32_t needed : f_.groups[sorted[at]].needs)
                place_[needed] = std::min(place_[needed], place_[sorted[at]]);
    }

    // --- the walk ---

    bool is_temporary(ValueId v) const {
        return g_.producer(v) != nullptr && layouts_.output(v) < 0 && !p_.frozen[v];
    }

    // By how much running it now changes the memory in use.
    double change(std::uint32_t group) const {
        double sum = 0;
        for (ValueId v : makes_[group])
            if (is_temporary(v) && !copied_[v]) sum += likely_bytes(g_.type(v));
        for (ValueId v : reads_[group])
            if (is_temporary(v) && !copied_[v] && left_[v] == 1) sum -= likely_bytes(g_.type(v));
        return sum;
    }

    std::vector<std::uint32_t> walk() {
        left_.resize(g_.values().size());
        for (ValueId v = 0; v < left_.size(); ++v) left_[v] = readers_[v].size();
        std::vector<bool> done(count_, false);
        std::vector<std::uint32_t> sorted;
        for (std::uint32_t i = 0; i < count_; ++i)
            if (waiting_[i] == 0) push(i);
        while (sorted.size() < count_) {
            std::uint32_t next = take_update();
            while (next == kNone || done[next]) {
                check(!ready_.empty(), "fusion has made a cycle");
                next = std::get<2>(ready_.top());
                ready_.pop();
            }
            done[next] = true;
            std::erase(waiting_updates_, next);
            sorted.push_back(next);
            for (ValueId v : reads_[next]) --left_[v];
            for (std::uint32_t user : users_[next])
                if (--waiting_[user] == 0) push(user);
        }
        return sorted;
    }

    void push(std::uint32_t i) {
        ready_.push({!f_.groups[i].frozen, place_[i], i});
        if (update_[i]) waiting_updates_.push_back(i);
    }

    // An update that needs no more memory than it frees, or kNone.
    std::uint32_t take_update() const {
        for (std::uint32_t i : waiting_updates_)
            if (change(i) <= kSmallChange) return i;
        return kNone;
    }

    const Graph& g_;
    const Placement& p_;
    const Layouts& layouts_;
    const Fusion& f_;
    std::size_t count_;
    // By group: values in memory that it reads and makes, who comes behind it, how many come
    // before.
    std::vector<Values> reads_, makes_;
    std::vector<std::vector<std::uint32_t>> users_;
    std::vector<int> waiting_;
    std::vector<bool> update_;
    std::vector<NodeId> place_;
    // By value: the groups that read and make it, those that are still to read it, whether it is
    // going to be an input's new contents.
    std::vector<std::vector<std::uint32_t>> readers_, makers_;
    std::vector<std::size_t> left_;
    std::vector<bool> copied_;
    std::vector<bool> moved_;  // by group: behind the calls
    using Key = std::tuple<bool, NodeId, std::uint32_t>;
    std::priority_queue<Key, std::vector<Key>, std::greater<>> ready_;
    std::vector<std::uint32_t> waiting_updates_;
    // By group: when `reaches` last met it.
    std::vector<std::uint32_t> seen_;
    std::uint32_t stamp_ = 0;
};

}  // namespace

std::vector<std::uint32_t> order_groups(const Graph& graph, const Placement& placement,
                                        const Layouts& layouts, const Fusion& fusion) {
    return Orderer(graph, placement, layouts, fusion).run();
}

}  // namespace ingot::sched
