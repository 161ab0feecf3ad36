// See backwards.h.
#include "capture/backwards.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_variable.h>

#include <string_view>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>

#include "capture/objects.h"
#include "capture/transcript.h"
#include "trace/one_thread.h"
#include "trace/torch_compat.h"

namespace ingot::capture {
namespace {

using torch::autograd::AccumulateGrad;
using GraphNode = torch::autograd::Node;
using NodePtr = Backwards::NodePtr;

/// Stands where a graph was freed.
class SpentNode final : public GraphNode {
  public:
    explicit SpentNode(std::string name) : name_(std::move(name)) {}
    std::string name() const override { return name_; }
    torch::autograd::variable_list apply(torch::autograd::variable_list&&) override {
        throw std::runtime_error(torch::autograd::ERR_BACKWARD_TWICE);
    }

  private:
    std::string name_;
};

/// Whether the node is of a custom autograd.Function, whose type PyTorch does not export.
bool is_of_python(const GraphNode& node) {
    return std::string_view(typeid(node).name()) == "N5torch8autograd6PyNodeE";
}

bool has_hooks(GraphNode& node) {
    return !node.pre_hooks().empty() || !node.post_hooks().empty() ||
           !node.tensor_pre_hooks().empty() || !node.retains_grad_hooks().empty() ||
           node.tensor_post_acc_grad_hooks() != nullptr;
}

/// Whether a backward through the node needs something that the forward has kept.
bool keeps_something(const NodePtr& node) {
    if (is_of_python(*node)) return true;
    const Ref object = Ref::steal(torch::autograd::functionToPyObject(node));
    const Ref names = object ? Ref::steal(PyObject_Dir(object.get())) : Ref();
    bool found = !names;
    for (Py_ssize_t i = 0; !found && i < PyList_GET_SIZE(names.get()); ++i) {
        const char* name = PyUnicode_AsUTF8(PyList_GET_ITEM(names.get(), i));
        if (name == nullptr || !std::string_view(name).starts_with("_raw_saved_")) continue;
        const Ref value = Ref::steal(PyObject_GetAttrString(object.get(), name + 4));
        found = !value || (value.get() != Py_None &&
                           !(PyTuple_Check(value.get()) && PyTuple_GET_SIZE(value.get()) == 0));
    }
    PyErr_Clear();
    return found;
}

NodePtr node_of(const at::Tensor& t) { return torch::autograd::impl::gradient_edge(t).function; }

/// What has made the tensor; none of a leaf, and none of what PyTorch refuses a history: a view
/// without one, whose base needs a gradient and was written to.
NodePtr history_of(const at::Tensor& t) {
    if (!t.defined() || !t.requires_grad()) return nullptr;
    try {
        return t.grad_fn();
    } catch (const c10::Error&) {
        return nullptr;
    }
}

/// All nodes behind these, in an order in which users come before what they use, more or less.
std::vector<NodePtr> reachable(std::span<const at::Tensor> roots) {
    std::vector<NodePtr> found, stack;
    std::unordered_set<const GraphNode*> seen;
    for (const at::Tensor& t : roots) stack.push_back(node_of(t));
    while (!stack.empty()) {
        NodePtr node = std::move(stack.back());
        stack.pop_back();
        if (!node || !seen.insert(node.get()).second) continue;
        for (const auto& edge : node->next_edges()) stack.push_back(edge.function);
        found.push_back(std::move(node));
    }
    return found;
}

/// Those of `nodes` from which one of `targets` can be reached.
std::vector<NodePtr> leading_to(const std::vector<NodePtr>& nodes,
                                const std::unordered_set<const GraphNode*>& targets) {
    std::unordered_map<const GraphNode*, std::vector<const GraphNode*>> users;
    for (const NodePtr& n : nodes)
        for (const auto& edge : n->next_edges()) users[edge.function.get()].push_back(n.get());
    std::unordered_set<const GraphNode*> leading;
    std::vector<const GraphNode*> stack(targets.begin(), targets.end());
    while (!stack.empty()) {
        const GraphNode* node = stack.back();
        stack.pop_back();
        for (const GraphNode* user : users[node])
            if (leading.insert(user).second) stack.push_back(user);
    }
    std::vector<NodePtr> kept;
    for (const NodePtr& n : nodes)
        if (leading.contains(n.get())) kept.push_back(n);
    return kept;
}

}  // namespace

std::string Backwards::obstacle(const at::Tensor& root, const trace::Recorder& recorder) const {
    if (!recorder.owns(root)) return "a backward from outside";
    if (!history_of(root)) return "a backward without a history";
    return {};
}

/// A tensor of symbolic sizes is a leaf by its promise (trace/recorder.h). What was given the
/// tensor itself has another part of its gradient: its sizes are numbers from the next recording
/// on.
void Backwards::refuse_parts(const at::Tensor& leaf, const trace::Recorder& recorder) {
    const at::Tensor promise = recorder.leaf_for(leaf);
    if (!promise.defined()) return;
    (void)trace::concrete(promise.sym_sizes());
    throw Puzzle("a backward to an input whose sizes change");
}

/// The leaf whose gradient a target's is. Throws Puzzle where it is none, or more than a leaf.
at::Tensor Backwards::leaf_of(const at::Tensor& target, const BackwardCall& call,
                              const trace::Recorder& recorder, const Histories& histories) {
    const bool own = recorder.owns(target);
    at::Tensor leaf = own ? recorder.met_by(target) : target;
    if (!leaf.defined()) {
        if (call.accumulates) throw Puzzle("a backward to a tensor that was made");
        return target;
    }
    if ((!own || call.accumulates) && !leaf.is_leaf())
        throw Puzzle("a backward to a tensor with a history from outside");
    if (own && !call.accumulates ? histories.had_hooks(leaf)
                                 : histories.true_leaf(leaf).has_value())
        throw Puzzle("a backward into a history from outside, or with hooks");
    return leaf;
}

Backwards::Walk Backwards::walk(const BackwardCall& call, const trace::Recorder& recorder,
                                const Histories& histories) const {
    for (const at::Tensor& root : call.roots)
        if (const std::string reason = obstacle(root, recorder); !reason.empty())
            throw Puzzle(reason);
    Walk w;
    const std::vector<NodePtr> nodes = reachable(call.roots);
    for (const NodePtr& node : nodes) {
        if (has_hooks(*node)) throw Puzzle("a backward through a hook");
        if (spent_.contains(node.get()) && keeps_something(node))
            throw Puzzle("a backward through a graph that was freed");
        const auto* leaf = dynamic_cast<AccumulateGrad*>(node.get());
        if (leaf == nullptr) continue;
        if (histories.true_leaf(leaf->variable))
            throw Puzzle("a backward into a history from outside, or with hooks");
        const bool own = recorder.owns(leaf->variable);
        if (!own) refuse_parts(leaf->variable, recorder);
        w.met.push_back(own ? recorder.met_by(leaf->variable) : leaf->variable);
        if (call.accumulates && call.inputs.empty()) w.targets.push_back(leaf->variable);
    }
    if (!call.inputs.empty()) w.targets = call.inputs;
    std::unordered_set<const GraphNode*> targets;
    for (const at::Tensor& t : w.targets) {
        if (!t.requires_grad()) throw Puzzle("a gradient of what needs none");
        w.leaves.push_back(leaf_of(t, call, recorder, histories));
        targets.insert(node_of(t).get());
    }
    w.nodes = leading_to(nodes, targets);
    return w;
}

std::vector<at::Tensor> Backwards::run(const BackwardCall& call, const Walk& walk) {
    torch::autograd::edge_list roots, targets;
    for (const at::Tensor& t : call.roots) roots.push_back(torch::autograd::impl::gradient_edge(t));
    for (const at::Tensor& t : walk.targets)
        targets.push_back(torch::autograd::impl::gradient_edge(t));
    if (targets.empty()) return {};
    const trace::OneThread here;
    return torch::autograd::Engine::get_default_engine().execute(
        roots, call.tangents, /*keep_graph=*/true, call.creates, /*accumulate_grad=*/false,
        targets);
}

void Backwards::spend(const Walk& walk) {
    for (const NodePtr& node : walk.nodes) spent_.emplace(node.get(), node);
}

void Backwards::prepare(const Walk& walk, World& world, trace::Recorder& recorder,
                        const StandIn& stand_in) {
    for (std::size_t i = 0; i < walk.targets.size(); ++i) {
        const at::Tensor& leaf = walk.leaves[i];
        PyObject* object = python_object(leaf);
        if (object == nullptr || world.find(object) == nullptr)
            throw Puzzle("a gradient of a tensor that the program found by itself");
        world.read_gradient(object);
        if (!leaf.grad().defined()) continue;
        const at::Tensor grad = stand_in(leaf.grad());
        if (grad.requires_grad() || grad.scalar_type() != leaf.scalar_type() ||
            !recorder.may_write(grad))
            throw Puzzle("a gradient that cannot be added to in place");
        if (trace::unwrap(grad.sym_sizes()) == trace::unwrap(walk.targets[i].sym_sizes())) continue;
        (void)trace::concrete(grad.sym_sizes());
        (void)trace::concrete(walk.targets[i].sym_sizes());
        throw Puzzle("a gradient whose sizes are others than its tensor's");
    }
}

void Backwards::accumulate(const Walk& walk, const std::vector<at::Tensor>& gradients, World& world,
                           const trace::Recorder& recorder, const StandIn& stand_in) {
    any_ = true;
    at::AutoGradMode mode(false);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
        if (!gradients[i].defined()) continue;
        const at::Tensor& leaf = walk.leaves[i];
        at::Tensor& grad = leaf.mutable_grad();
        const at::Tensor before = grad;
        at::Tensor sum = grad.defined() ? stand_in(grad) : grad;
        AccumulateGrad::accumulateGrad(walk.targets[i], sum, gradients[i], 1,
                                       [&](at::Tensor&& made) { grad = std::move(made); });
        if (grad.is_same(before)) continue;
        world.undo().note_gradient(python_object(leaf), before, recorder.log().size());
        world.write_gradient(python_object(leaf));
        leaves_.push_back(leaf);
    }
}

std::vector<Ref> Backwards::gradients() const {
    std::vector<Ref> found;
    for (const at::Tensor& leaf : leaves_)
        if (trace::is_promise(leaf.grad()))
            found.push_back(Ref::steal(THPVariable_Wrap(leaf.grad())));
    return found;
}

std::string Backwards::spent(const at::Tensor& tensor) const {
    const NodePtr history = spent_.empty() ? nullptr : history_of(tensor);
    if (!history) return {};
    for (const NodePtr& node : reachable(std::span(&tensor, 1)))
        if (spent_.contains(node.get()) && keeps_something(node)) return history->name();
    return {};
}

void Backwards::mark_spent(at::Tensor& tensor, const std::string& name) {
    if (tensor.is_view() || tensor.requires_grad()) tensor = tensor.detach();
    torch::autograd::set_history(tensor, trace::make_node<SpentNode>(name));
}

void Backwards::release(const at::Tensor& tensor) {
    if (!history_of(tensor)) return;
    for (const NodePtr& node : reachable(std::span(&tensor, 1))) node->release_variables();
}

}  // namespace ingot::capture
