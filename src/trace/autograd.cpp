// See autograd.h.
#include "trace/autograd.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <numeric>
#include <queue>
#include <unordered_map>
#include <unordered_set>

#include "passes/regions.h"
#include "trace/lower/emitter.h"
#include "trace/mode.h"
#include "trace/one_thread.h"
#include "trace/recorder_state.h"
#include "trace/tensors.h"
#include "trace/unread_failures.h"
#include "trace/view_history.h"
#include "trace/view_steps.h"

namespace ingot::trace {

at::Tensor RecorderState::add_tangent(const at::Tensor& output, std::string name) {
    auto cell = std::make_shared<Cell>();
    cell->owner = this;
    cell->dtype = output.scalar_type();
    cell->sizes = output.sym_sizes().vec();
    // Engines hand over gradients as they come; those laid out as the result are the usual case.
    const Layout layout{cell->sizes, output.sym_strides().vec()};
    cell->strides = is_dense(layout) ? layout.strides : contiguous(cell->sizes);
    cell->input = static_cast<std::int32_t>(inputs.size());
    const Type& type = graph.type(read(output));
    cell->value = graph.add_input(Type{type}, std::move(name), to_sizes(cell->strides));
    at::Tensor promise(c10::make_intrusive<Promise>(cell, nullptr, cell->dtype, output.device(),
                                                    cell->sizes, cell->strides, 0));
    inputs.push_back({promise, at::Tensor(), false});
    kept_.emplace_back();
    input_cells_.push_back(cell);
    return promise;
}

namespace {

using GraphNode = torch::autograd::Node;

/// The nodes behind `roots` in the order in which PyTorch's engine executes them on one thread: of
/// those whose users are done the one made last, and accumulators of gradients before all others.
/// Among equals the queue itself decides, so it is the engine's.
std::vector<const GraphNode*> execution_order(const std::vector<at::Tensor>& roots) {
    std::unordered_map<const GraphNode*, std::size_t> waits_for;  // edges from users to come
    std::vector<const GraphNode*> stack;
    for (const at::Tensor& root : roots) {
        const GraphNode* node = torch::autograd::impl::gradient_edge(root).function.get();
        if (waits_for[node]++ == 0) stack.push_back(node);
    }
    while (!stack.empty()) {
        const GraphNode* node = stack.back();
        stack.pop_back();
        for (const auto& edge : node->next_edges())
            if (edge.is_valid() && waits_for[edge.function.get()]++ == 0)
                stack.push_back(edge.function.get());
    }
    const auto later = [](const GraphNode* a, const GraphNode* b) {
        return a->sequence_nr() < b->sequence_nr();
    };
    std::priority_queue<const GraphNode*, std::vector<const GraphNode*>, decltype(later)> ready(
        later);
    const auto reach = [&](const GraphNode* node) {
        if (--waits_for[node] == 0) ready.push(node);
    };
    for (const at::Tensor& root : roots)
        reach(torch::autograd::impl::gradient_edge(root).function.get());
    std::vector<const GraphNode*> order;
    while (!ready.empty()) {
        order.push_back(ready.top());
        ready.pop();
        for (const auto& edge : order.back()->next_edges())
            if (edge.is_valid()) reach(edge.function.get());
    }
    return order;
}

}  // namespace

/// The steps of finish_joint.
class JointRecorder {
  public:
    JointRecorder(RecorderState& state, std::span<const at::Tensor> outputs)
        : state_(state), outputs_(outputs.begin(), outputs.end()) {}

    JointRecording run() {
        for (std::size_t i = 0; i < state_.inputs.size(); ++i)
            if (is_given_by_caller(i) && state_.kept_[i].requires_grad())
                state_.inputs[i].promise.set_requires_grad(true);
        std::vector<OutputRecipe> recipes = state_.describe_outputs(outputs_);
        find_bases(recipes);
        state_.write_inputs();
        out_.forward_outputs = state_.graph.outputs().size();
        out_.forward_calls = state_.log.size();
        for (const LoggedCall& call : state_.log)
            out_.custom = out_.custom || call.function != nullptr;
        refuse_what_gradients_forbid(recipes);
        boundary_ = state_.graph.nodes().size();
        add_tangents(recipes);
        find_features();
        record_backward();
        find_readable_inputs();
        // What a backward repeats has been checked.
        if (state_.device.value_or(c10::kCPU).is_cpu())
            keep_failures(state_.graph, *state_.symbols, boundary_);
        out_.recording = state_.package(std::move(recipes));
        return std::move(out_);
    }

  private:
    /// A tensor that the program met by itself and that a call will be given.
    bool is_given_by_caller(std::size_t i) const {
        return state_.inputs[i].met && !state_.inputs[i].captured.defined();
    }

    void refuse_what_gradients_forbid(const std::vector<OutputRecipe>& recipes) const {
        for (std::size_t i = 0; i < state_.inputs.size(); ++i) {
            const InputSource& source = state_.inputs[i];
            if (source.captured.defined() && source.captured.requires_grad())
                throw NotSupported("a tensor found by the program itself needs a gradient");
            if (state_.input_cells_[i]->generation != 0 && source.promise.requires_grad())
                throw NotSupported("an input that needs a gradient is written");
        }
        for (std::size_t i = 0; i < recipes.size(); ++i) {
            const OutputRecipe& r = recipes[i];
            if (!outputs_[i].defined()) continue;
            if (r.kind != OutputRecipe::Kind::ViewOfInput) continue;
            const at::Tensor& base = state_.inputs[r.index].promise;
            if (outputs_[i].requires_grad() &&
                (!base.requires_grad() || state_.input_cells_[r.index]->generation != 0))
                throw NotSupported("a view of an input has a gradient of its own");
        }
    }

    /// Results that share memory: what they are views of is a result with a history, if need be a
    /// hidden one, and they become PyTorch's views of it, as in eager. Writes to one of them are
    /// seen by all, and their gradients come together there.
    void find_bases(std::vector<OutputRecipe>& recipes) {
        using Kind = OutputRecipe::Kind;
        const std::size_t asked = outputs_.size();
        out_.results.resize(asked);
        for (std::size_t i = 0; i < asked; ++i) {
            OutputRecipe& r = recipes[i];
            const at::Tensor t = outputs_[i];
            if (r.kind != Kind::ViewOfGraph || !t.requires_grad()) continue;
            const at::Tensor base = t.is_view() ? at::Tensor(t._base()) : t;
            if (r.apart || !is_whole(base, t) || !leads_to(t, base))
                throw NotSupported("results that need gradients share memory");
            const auto found = std::ranges::find_if(
                outputs_, [&](const at::Tensor& o) { return o.defined() && o.is_same(base); });
            const auto at = static_cast<std::size_t>(found - outputs_.begin());
            const OutputRecipe view = std::exchange(r, {});
            if (at == outputs_.size()) {
                outputs_.push_back(base);
                recipes.emplace_back();
                out_.results.emplace_back();
                out_.hidden.push_back(base);
            }
            recipes[at] = {};
            recipes[at].kind = Kind::Graph;
            recipes[at].index = view.index;
            recipes[at].marks.version = view.marks.version;
            if (at == i) continue;
            JointRecording::Result& result = out_.results[i];
            result.view_of = static_cast<std::int32_t>(at);
            result.sizes = view.sizes;
            result.strides = view.strides;
            result.offset = view.offset;
            result.marks = view.marks;
            result.steps = steps_between(state_.log, std::span(&base, 1), t);
        }
        for (std::size_t i = 0; i < asked; ++i) {
            OutputRecipe& r = recipes[i];
            if (r.kind != Kind::Same || out_.results[r.index].view_of < 0) continue;
            out_.results[i].same_as = r.index;
            r = {};
        }
    }

    /// Whether the view's history goes to that of its base: not if it was made without gradients.
    static bool leads_to(const at::Tensor& view, const at::Tensor& base) {
        const auto end = torch::autograd::impl::gradient_edge(base);
        std::vector<torch::autograd::Edge> stack{torch::autograd::impl::gradient_edge(view)};
        for (std::size_t steps = 0; !stack.empty() && steps < 256; ++steps) {
            const torch::autograd::Edge edge = std::move(stack.back());
            stack.pop_back();
            if (edge == end) return true;
            if (!edge.is_valid()) continue;
            const auto& next = edge.function->next_edges();
            stack.insert(stack.end(), next.begin(), next.end());
        }
        return false;
    }

    /// Whether `base`, to PyTorch the tensor that `view` looks into, is all that lies there.
    static bool is_whole(const at::Tensor& base, const at::Tensor& view) {
        const Promise *p = as_promise(base.unsafeGetTensorImpl()),
                      *q = as_promise(view.unsafeGetTensorImpl());
        if (p == nullptr || q == nullptr || p->cell() != q->cell()) return false;
        const Cell& cell = *p->cell();
        return base.requires_grad() && !p->is_apart() && !p->view() &&
               cell.dtype == c10::typeMetaToScalarType(p->dtype()) &&
               p->sym_sizes() == c10::SymIntArrayRef(cell.sizes) &&
               p->sym_strides() == c10::SymIntArrayRef(cell.strides);
    }

    /// Results that are inputs, or look into them, get their gradients by PyTorch's own views.
    void add_tangents(const std::vector<OutputRecipe>& recipes) {
        for (std::size_t i = 0; i < outputs_.size(); ++i) {
            JointRecording::Result& result = out_.results[i];
            const at::Tensor& t = outputs_[i];
            result.requires_grad = t.defined() && t.requires_grad();
            using Kind = OutputRecipe::Kind;
            const bool own = recipes[i].kind == Kind::Graph || recipes[i].kind == Kind::ViewOfGraph;
            if (result.requires_grad && own) {
                result.tangent = static_cast<std::int32_t>(state_.inputs.size());
                out_.tangents.push_back(result.tangent);
                roots_.push_back(t);
                tangents_.push_back(
                    state_.add_tangent(t, "tangent" + std::to_string(tangents_.size())));
            }
        }
    }

    /// Which results stand behind which: `features` that a hook has kept behind the logits.
    void find_features() {
        out_.through.resize(outputs_.size());
        std::vector<std::size_t> results;  // with a gradient of their own
        std::vector<torch::autograd::Edge> edges;
        for (std::size_t i = 0; i < outputs_.size(); ++i) {
            if (out_.results[i].tangent < 0) continue;
            results.push_back(i);
            edges.push_back(torch::autograd::impl::gradient_edge(outputs_[i]));
        }
        if (results.size() < 2) return;
        for (std::size_t a = 0; a < results.size(); ++a) {
            std::unordered_set<const GraphNode*> seen;
            std::vector<const GraphNode*> stack{edges[a].function.get()};
            while (!stack.empty()) {
                const GraphNode* node = stack.back();
                stack.pop_back();
                if (node == nullptr || !seen.insert(node).second) continue;
                for (const auto& edge : node->next_edges()) {
                    stack.push_back(edge.function.get());
                    for (std::size_t b = 0; b < results.size(); ++b)
                        if (b != a && edge == edges[b] && is_asked_for(results[b]) &&
                            is_written_by_itself(outputs_[results[b]]))
                            add_once(out_.through[results[a]], results[b]);
                }
            }
        }
    }
    static void add_once(std::vector<std::size_t>& list, std::size_t value) {
        if (std::ranges::find(list, value) == list.end()) list.push_back(value);
    }
    bool is_asked_for(std::size_t result) const {
        return result < outputs_.size() - out_.hidden.size();
    }
    /// Whether nothing but the tensor itself was used to change its memory: its history is then
    /// that of the last call that gives it.
    bool is_written_by_itself(const at::Tensor& t) const {
        const Cell* cell = as_promise(t.unsafeGetTensorImpl())->cell().get();
        for (const LoggedCall& call : state_.log) {
            if (!call.op.schema().is_mutable()) continue;
            for (std::size_t i = 0; i < call.arguments.size(); ++i) {
                const auto* alias = call.op.schema().arguments()[i].alias_info();
                if (alias == nullptr || !alias->isWrite()) continue;
                bool others = false;
                for_each_tensor(call.arguments[i], [&](const at::Tensor& written) {
                    const Promise* p =
                        written.defined() ? as_promise(written.unsafeGetTensorImpl()) : nullptr;
                    others =
                        others || (p != nullptr && p->cell().get() == cell && !written.is_same(t));
                });
                if (others) return false;
            }
        }
        return true;
    }

    void record_backward() {
        std::vector<at::Tensor> leaves;
        for (std::size_t i = 0; i < state_.inputs.size(); ++i)
            if (state_.inputs[i].promise.requires_grad()) {
                // PyTorch's graph knows a tensor that was met as it is, not by its promise, unless
                // its sizes are symbolic.
                const at::Tensor& promise = state_.inputs[i].promise;
                const bool itself = is_given_by_caller(i) && !is_own_leaf(promise);
                leaves.push_back(itself ? state_.kept_[i] : promise);
                out_.gradients.push_back({static_cast<std::int32_t>(i), {}, {}});
            }
        if (roots_.empty() || leaves.empty()) throw NotSupported("nothing needs a gradient");
        for (const at::Tensor& root : roots_) settle_history(root);
        find_reach(leaves);
        find_turns(leaves);
        std::vector<at::Tensor> gradients;
        {
            Recording_ scope(state_);
            const OneThread here;
            // The forward's casts are done; eager's backward usually runs outside of autocast.
            c10::impl::ExcludeDispatchKeyGuard autocast(c10::autocast_dispatch_keyset);
            gradients = torch::autograd::grad(roots_, leaves, tangents_, /*retain_graph=*/false,
                                              /*create_graph=*/false, /*allow_unused=*/true);
        }
        for (std::size_t i = out_.forward_calls; i < state_.log.size(); ++i)
            if (draws_random_numbers(state_.log[i].op))
                throw NotSupported("a backward draws random numbers");  // when, is eager's order
        const auto recipes = state_.describe_outputs(gradients);
        for (std::size_t i = 0; i < recipes.size(); ++i) out_.gradients[i].recipe = recipes[i];
        for (std::size_t i = 0; i < state_.input_cells_.size(); ++i)
            if (state_.input_cells_[i]->generation != 0 && !was_written(i))
                throw NotSupported("the backward writes an input");
    }

    /// The gradient of an attention with dropout is given the numbers that its forward has drawn,
    /// though it is marked as if it drew some.
    static bool draws_random_numbers(const c10::OperatorHandle& op) {
        return op.hasTag(at::Tag::nondeterministic_seeded) &&
               !op.operator_name().name.ends_with("_backward");
    }

    bool was_written(std::size_t input) const {
        for (std::size_t o = 0; o < out_.forward_outputs; ++o)
            if (state_.graph.outputs()[o].writes_input == static_cast<std::int32_t>(input))
                return true;
        return false;
    }

    /// Which leaves lie behind which tangent: without the others' gradients, theirs are undefined.
    void find_reach(const std::vector<at::Tensor>& leaves) {
        using torch::autograd::Node;
        std::vector<const Node*> accumulators;
        for (const at::Tensor& leaf : leaves)
            accumulators.push_back(torch::autograd::impl::gradient_edge(leaf).function.get());
        // Operators may have been given the tensor all the same: the gradient is in two parts then.
        std::unordered_set<const Node*> others;
        for (std::size_t i = 0; i < state_.inputs.size(); ++i)
            if (is_given_by_caller(i) && is_own_leaf(state_.inputs[i].promise))
                others.insert(
                    torch::autograd::impl::try_get_grad_accumulator(state_.kept_[i]).get());
        others.erase(nullptr);
        for (const at::Tensor& root : roots_) {
            std::unordered_set<const Node*> seen;
            std::vector<const Node*> stack{
                torch::autograd::impl::gradient_edge(root).function.get()};
            while (!stack.empty()) {
                const Node* node = stack.back();
                stack.pop_back();
                if (node == nullptr || !seen.insert(node).second) continue;
                if (others.contains(node))
                    throw NotSupported(
                        "a tensor of symbolic sizes needs a gradient and is used "
                        "as it is");
                for (const auto& edge : node->next_edges()) stack.push_back(edge.function.get());
            }
            for (std::size_t i = 0; i < leaves.size(); ++i)
                out_.gradients[i].reached.push_back(seen.contains(accumulators[i]));
        }
    }

    /// In which order eager's engine would hand over the gradients.
    void find_turns(const std::vector<at::Tensor>& leaves) {
        std::unordered_map<const GraphNode*, std::size_t> place;
        for (const GraphNode* node : execution_order(roots_)) place.emplace(node, place.size());
        std::vector<std::size_t> places;
        for (const at::Tensor& leaf : leaves) {
            const auto found =
                place.find(torch::autograd::impl::gradient_edge(leaf).function.get());
            places.push_back(found != place.end() ? found->second : place.size());
        }
        out_.order.resize(leaves.size());
        std::iota(out_.order.begin(), out_.order.end(), std::size_t{0});
        std::ranges::stable_sort(out_.order, {}, [&](std::size_t i) { return places[i]; });
    }

    /// Eager saves what its backward reads, and checks that it has not changed since. Reading more
    /// of a caller's tensors would see changes that eager does not mind.
    void find_readable_inputs() {
        const Graph& g = state_.graph;
        std::vector<bool> readable(g.inputs().size(), false), within = readable, outside = readable;
        const auto note = [&](ValueId v, std::vector<bool>& found) {
            const Node* n = g.producer(v);
            while (n != nullptr && is_movement(n->prim) && !n->operands.empty()) {
                v = n->operands[0];
                n = g.producer(v);
            }
            if (n == nullptr) found[g.values()[v].position] = true;
        };
        for (NodeId id = 0; id < g.nodes().size(); ++id) {
            const Node& n = g.node(id);
            const bool forward = id < boundary_;
            if (forward && is_movement(n.prim)) continue;
            for (ValueId v : n.operands)
                note(v, !forward ? readable : is_of_region(n) ? within : outside);
        }
        // What a region reads, eager's second run of it reads as it is by then.
        out_.unchecked.assign(g.inputs().size(), false);
        for (std::size_t i = 0; i < readable.size(); ++i) {
            readable[i] = readable[i] || within[i];
            out_.unchecked[i] = within[i] && !outside[i];
        }
        for (const auto& [impl, tensor] : state_.given_to_regions) {
            const auto found = state_.captured_.find(impl);
            const Promise* p = as_promise(
                found != state_.captured_.end() ? found->second.unsafeGetTensorImpl() : impl);
            if (p != nullptr && p->cell()->input >= 0)
                out_.unchecked[static_cast<std::size_t>(p->cell()->input)] = false;
        }
        for (std::size_t i = 0; i < readable.size(); ++i) {
            const InputSource& source = state_.inputs[i];
            readable[i] = readable[i] || source.captured.defined();
            // After the forward it holds something else.
            if (state_.input_cells_[i]->generation != 0) readable[i] = false;
        }
        out_.readable_in_backward = std::move(readable);
    }

    struct Recording_ {
        explicit Recording_(RecorderState& state) { push_mode(state); }
        ~Recording_() { pop_mode(); }
        Recording_(const Recording_&) = delete;
        Recording_& operator=(const Recording_&) = delete;
    };

    RecorderState& state_;
    std::vector<at::Tensor> outputs_, roots_, tangents_;
    std::size_t boundary_ = 0;
    JointRecording out_;
};

JointRecording RecorderState::finish_joint(std::span<const at::Tensor> outputs) {
    try {
        return JointRecorder(*this, outputs).run();
    } catch (const Error&) {
        throw;
    } catch (const std::exception& e) {
        // Through the engine an error of ours comes out as another type.
        throw NotSupported(failure ? *failure : std::string("in the backward: ") + e.what());
    }
}

}  // namespace ingot::trace
