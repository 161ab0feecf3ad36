// See differentiable.h.
#include "trace/differentiable.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <optional>

#include "passes/passes.h"
#include "schedule/layout.h"
#include "trace/backward_node.h"
#include "trace/delivery.h"
#include "trace/dtypes.h"
#include "trace/early_calls.h"
#include "trace/extern_host.h"
#include "trace/graph_memory.h"
#include "trace/output_tensor.h"
#include "trace/partial_backwards.h"
#include "trace/random_again.h"
#include "trace/silent_changes.h"
#include "trace/symbol_values.h"
#include "trace/tensors.h"
#include "trace/torch_compat.h"

namespace ingot::trace {
namespace {

/// A gradient of a result that a CUDA graph reads in place if it can; smaller ones are copied.
constexpr std::int64_t kWorthNoCopy = std::int64_t{32} << 20;

/// Of an arena, where as little memory as possible is wanted: smaller ones cost more to make anew
/// than they weigh.
constexpr std::size_t kKeptArena = std::size_t{4} << 20;

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

/// Which inputs' old contents reach a result or the backward, not only what is written back.
std::vector<bool> contents_that_matter(const JointRecording& joint) {
    const Graph& g = joint.recording.graph;
    std::vector<bool> live(g.values().size(), false);
    for (const Output& o : g.outputs())
        if (o.writes_input < 0) live[o.value] = true;
    for (NodeId id = static_cast<NodeId>(g.nodes().size()); id-- > 0;) {
        const Node& n = g.node(id);
        bool used = false;
        for (ValueId v : n.results) used = used || live[v];
        if (used)
            for (ValueId v : n.operands) live[v] = true;
    }
    std::vector<bool> matter;
    for (const Input& in : g.inputs()) matter.push_back(live[in.value]);
    return matter;
}

/// ATen's attention puts heads beside channels: [b, l, h, e], and [b, l, h] for the sums.
Sizes attention_strides(const Sizes& s) {
    if (s.size() == 3) return {s[1] * s[2], 1, s[1]};
    return {s[1] * s[2] * s[3], s[3], s[1] * s[3], 1};
}

/// What the joint graph goes through before it is split; each half then runs the whole pipeline.
/// What is gathered for a convolution is gathered once, for its gradient too.
Graph clean(Graph graph, bool gpu) {
    static constexpr Pass kPasses[] = {
        {"simplify", simplify},
        {"fold_constants", fold_constants},
        {"eliminate_common", eliminate_common},
        {"eliminate_dead", eliminate_dead},
        {"few_channels", few_channels},
        {"simplify", simplify},
        {"eliminate_common", eliminate_common},
        {"eliminate_dead", eliminate_dead},
    };
    PassContext context;
    context.vendor_epilogues = gpu;
    return run_passes(std::move(graph), context, {}, kPasses);
}

/// What is said of the two halves.
std::string of_both(const std::string& forward, const std::string& backward) {
    return forward == backward ? forward : "forward: " + forward + "; backward: " + backward;
}

}  // namespace

DifferentiableFunction::DifferentiableFunction(
    JointRecording joint, std::span<const at::Tensor> examples,
    std::span<const at::Tensor> promises, std::vector<at::Tensor> outputs,
    std::shared_ptr<const runtime::Compiler> compiler, runtime::CompileOptions options,
    double memory_budget, const runtime::InterruptCheck& interrupted)
    : compiler_(std::move(compiler)),
      options_(std::move(options)),
      device_(joint.recording.device) {
    options_.tuning_seconds /= 2;  // for each half
    map_inputs(joint, examples, promises);
    results_ = joint.results;
    asked_ = results_.size() - joint.hidden.size();
    passages_ = passages_of(joint.through);
    random_ = joint.recording.uses_random;
    custom_ = joint.custom;
    symbols_ = joint.recording.numbers;
    for (const Input& in : joint.recording.graph.inputs())
        for (Expr e : joint.recording.graph.type(in.value).sizes) collect_symbols(e, symbols_);
    if (device_.is_cuda() && !symbols_.empty())
        throw NotSupported("symbolic sizes in a backward on a GPU");
    if (device_.is_cuda()) early_calls_ = std::make_unique<EarlyCalls>(device_);
    Partition parts = split(joint, examples, memory_budget);
    saved_bytes_ = parts.saved_bytes;
    make_forward(joint, parts, examples, promises, std::move(outputs), interrupted);
    make_backward(joint, parts, interrupted);
    // Between the two programs is the loss's time, and behind them the optimizer's: with the least
    // memory as the aim nothing waits there for the next program.
    least_memory_ = memory_budget <= 0 && device_.is_cpu();
    auto arena = least_memory_ ? std::make_shared<runtime::SharedArena>(kKeptArena)
                               : std::make_shared<runtime::SharedArena>();
    if (least_memory_) forward_->return_results(results_.size());
    forward_->share_arena(arena);
    backward_->share_arena(arena);
    partial_->share_arena(std::move(arena));
    join_graphs(joint);
    gradients_ = std::move(joint.gradients);
    order_ = std::move(joint.order);
}

DifferentiableFunction::~DifferentiableFunction() = default;

void DifferentiableFunction::map_inputs(const JointRecording& joint,
                                        std::span<const at::Tensor> examples,
                                        std::span<const at::Tensor> promises) {
    from_caller_.assign(joint.recording.inputs.size(), -1);
    for (const InputSource& source : joint.recording.inputs) captured_.push_back(source.captured);
    for (std::size_t i = 0; i < promises.size(); ++i) {
        requires_grad_.push_back(promises[i].requires_grad());
        for (std::size_t g = 0; g < from_caller_.size(); ++g)
            if (joint.recording.inputs[g].promise.is_same(promises[i]) && from_caller_[g] < 0)
                from_caller_[g] = static_cast<std::int32_t>(i);
    }
    const std::vector<bool> matter = contents_that_matter(joint);
    for (std::size_t o = 0; o < joint.forward_outputs; ++o) {
        const std::int32_t input = joint.recording.graph.outputs()[o].writes_input;
        if (input < 0) continue;
        if (from_caller_[input] < 0) throw NotSupported("a tensor of the program is written");
        written_.push_back(from_caller_[input]);
        old_contents_matter_.push_back(matter[input]);
    }
    for (std::size_t g = 0; g < joint.saved_inputs.size(); ++g)
        if (joint.saved_inputs[g] && from_caller_[g] >= 0) saved_inputs_.push_back(from_caller_[g]);
    (void)examples;
}

Partition DifferentiableFunction::split(JointRecording& joint, std::span<const at::Tensor> examples,
                                        double memory_budget) {
    PartitionQuery query;
    query.forward_outputs = joint.forward_outputs;
    query.tangents = joint.tangents;
    query.memory_budget = memory_budget;
    query.readable_in_backward = joint.readable_in_backward;
    if (device_.is_cuda()) query.parameters.assign(from_caller_.size(), false);
    for (std::size_t g = 0; g < from_caller_.size(); ++g) {
        if (from_caller_[g] < 0) continue;
        // A parameter is not expected to change before the backward: eager's check for its weight
        // would notice, as an optimizer changes all of them.
        const at::Tensor& t = examples[from_caller_[g]];
        bool written =
            std::find(written_.begin(), written_.end(), from_caller_[g]) != written_.end();
        if (t.requires_grad() && t.is_leaf() && !written) query.readable_in_backward[g] = true;
        if (t.requires_grad() && t.is_leaf() && device_.is_cuda()) query.parameters[g] = true;
    }
    const std::vector<ExternCallee>& externs = joint.recording.externs;
    const bool round = joint.recording.graph.round_intermediates;
    Graph graph = clean(std::move(joint.recording.graph), device_.is_cuda());
    graph.round_intermediates = round;
    // What is saved stays as it lies: copies cost as much as the kernels of a GPU, and images that
    // the backward reads are channels last like its gradients.
    const bool gpu = device_.is_cuda();
    const sched::Layouts layouts(graph, gpu);
    query.views_are_free = gpu;
    query.strides_of = [&](const Graph& g, ValueId v) -> Sizes {
        const ingot::Node* n = g.producer(v);
        if (gpu || n == nullptr) return layouts.strides(v);
        if (n->prim == Prim::Attention) return attention_strides(g.type(v).sizes);
        if (n->prim != Prim::ExternCall) return layouts.strides(v);
        const auto& callee =
            externs.at(static_cast<std::size_t>(n->attrs.get<std::int64_t>("index")));
        return callee.result_strides.at(g.values()[v].position);
    };
    return partition(graph, query);
}

void DifferentiableFunction::make_forward(JointRecording& joint, Partition& parts,
                                          std::span<const at::Tensor> examples,
                                          std::span<const at::Tensor> promises,
                                          std::vector<at::Tensor> outputs,
                                          const runtime::InterruptCheck& interrupted) {
    Recording forward;
    forward.device = device_;
    forward.graph = std::move(parts.forward);
    for (std::size_t g = 0; g < joint.recording.inputs.size(); ++g)
        if (std::find(joint.tangents.begin(), joint.tangents.end(), static_cast<std::int32_t>(g)) ==
            joint.tangents.end())
            forward.inputs.push_back(joint.recording.inputs[g]);
    forward.outputs = joint.recording.outputs;
    forward.externs = joint.recording.externs;
    forward.uses_random = joint.recording.uses_random;
    forward.numbers = joint.recording.numbers;
    forward.computed = symbols_;
    forward.hint = joint.recording.hint;
    forward.log.assign(
        joint.recording.log.begin(),
        joint.recording.log.begin() + static_cast<std::ptrdiff_t>(joint.forward_calls));
    for (const SavedValue& s : parts.saved) {
        if (s.from == SavedValue::From::Input) {
            saved_.push_back({s.from, s.index, false, false,
                              joint.unchecked[static_cast<std::size_t>(s.index)]});
            continue;
        }
        using Kind = OutputRecipe::Kind;
        bool is_result = false, seen = forward.graph.outputs()[s.index].writes_input >= 0;
        for (const OutputRecipe& r : joint.recording.outputs) {
            if (r.index != s.index) continue;
            is_result = is_result || r.kind == Kind::Graph;
            seen = seen || r.kind == Kind::Graph || r.kind == Kind::ViewOfGraph;
        }
        saved_.push_back(
            {s.from, static_cast<std::int32_t>(forward.outputs.size()), is_result, !seen});
        saved_in_rooms_.resize(forward.graph.outputs().size(), false);
        if (!seen) saved_in_rooms_[s.index] = true;
        OutputRecipe recipe;
        recipe.kind = OutputRecipe::Kind::Graph;
        recipe.index = s.index;
        forward.outputs.push_back(std::move(recipe));
    }
    MakingEvents events;
    if (early_calls_) events.planned = early_calls_->forward_planned();
    forward_ = std::make_unique<CompiledFunction>(std::move(forward), examples, promises,
                                                  std::move(outputs), compiler_, options_,
                                                  interrupted, events);
}

void DifferentiableFunction::make_backward(JointRecording& joint, Partition& parts,
                                           const runtime::InterruptCheck& interrupted) {
    Recording backward;
    backward.device = device_;
    backward.numbers = symbols_;
    std::vector<std::int32_t> position(joint.recording.inputs.size(), -1);
    for (std::size_t i = 0; i < parts.saved.size(); ++i)
        if (parts.saved[i].from == SavedValue::From::Input)
            position[parts.saved[i].index] = static_cast<std::int32_t>(i);
    for (std::size_t t = 0; t < joint.tangents.size(); ++t)
        position[joint.tangents[t]] = static_cast<std::int32_t>(parts.saved.size() + t);
    for (const Input& in : parts.backward.inputs()) {
        const Type& type = parts.backward.type(in.value);
        backward_inputs_.push_back({type.sizes, in.strides, to_scalar_type(type.dtype)});
    }
    const std::vector<at::Tensor> shown = stand_ins(parts.backward, device_);
    for (const at::Tensor& t : shown) backward.inputs.push_back({t, at::Tensor()});
    for (const JointRecording::Gradient& gradient : joint.gradients) {
        OutputRecipe r = gradient.recipe;
        r.marks.creation = 0;  // whoever gets it may do as he likes
        r.marks.version = 0;
        using Kind = OutputRecipe::Kind;
        if (r.kind == Kind::Graph || r.kind == Kind::ViewOfGraph)
            r.index -= static_cast<std::int32_t>(joint.forward_outputs);
        if (r.kind == Kind::Input || r.kind == Kind::ViewOfInput) {
            r.index = position[r.index];
            if (r.index < 0) throw NotSupported("a gradient looks into an input");
        }
        backward.outputs.push_back(std::move(r));
    }
    backward.graph = std::move(parts.backward);
    backward.externs = std::move(joint.recording.externs);
    runtime::CompileOptions options = options_;
    options.freezing = false;
    MakingEvents events;
    if (early_calls_) events = early_calls_->backward_events(compiler_);
    backward.hint = joint.recording.hint;
    backward_ = std::make_unique<CompiledFunction>(std::move(backward), shown, shown,
                                                   std::vector<at::Tensor>{}, compiler_, options,
                                                   interrupted, events);
    partial_ = std::make_unique<PartialBackwards>(*backward_, parts.saved.size(), symbols_,
                                                  joint.recording.hint, device_, compiler_,
                                                  std::move(options));
}

/// How the backward's CUDA graphs read: saved results lie where the forward's graphs write them.
void DifferentiableFunction::join_graphs(const JointRecording& joint) {
    using Reading = CompiledFunction::Reading;
    std::vector<Reading> readings;
    for (const Saved& s : saved_)
        readings.push_back(s.from == SavedValue::From::Input ? forward_->readings()[s.index]
                                                             : Reading::InPlace);
    while (readings.size() < backward_inputs_.size()) {
        const Layout& tangent = backward_inputs_[readings.size()];
        std::int64_t bytes = c10::elementSize(tangent.dtype);
        for (const Expr n : tangent.sizes)  // one that varies may be as big as it likes
            bytes = n.is_constant() ? bytes * n.constant() : kWorthNoCopy;
        readings.push_back(bytes >= kWorthNoCopy ? Reading::Movable : Reading::Copied);
    }
    partial_->share_graphs(readings, forward_->graph_memory());
    backward_->set_readings(std::move(readings));
    forward_->copy_results_out(joint.recording.outputs.size());
    backward_->share_graph_memory(forward_->graph_memory());
    if (std::ranges::none_of(saved_, &Saved::dies)) return;
    std::vector<bool> dying(backward_inputs_.size(), false);
    for (std::size_t i = 0; i < saved_.size(); ++i) dying[i] = saved_[i].dies;
    if (const auto& memory = forward_->graph_memory(); memory != nullptr)
        memory->expect_room(forward_->room_bytes(*backward_, dying, true),
                            forward_->room_bytes(*backward_, dying, false));
    forward_->save_in_rooms(std::move(saved_in_rooms_));
    backward_->enter_rooms(dying);
}

std::string DifferentiableFunction::graph_state() const {
    return of_both(forward_->graph_state(), backward_->graph_state());
}

std::size_t DifferentiableFunction::early_calls() const {
    return early_calls_ ? early_calls_->count() : 0;
}

std::string DifferentiableFunction::tuning_state() const {
    return of_both(forward_->tuning_state(), backward_->tuning_state());
}

at::Tensor DifferentiableFunction::input(std::span<c10::TensorImpl* const> inputs,
                                         std::int32_t g) const {
    return from_caller_[g] >= 0 ? borrow(inputs[from_caller_[g]]) : captured_[g];
}

DifferentiableFunction::Numbers DifferentiableFunction::numbers_of(const Sizes& sizes,
                                                                   const Numbers& values) const {
    Numbers out;
    for (const Expr e : sizes)
        out.push_back(e.is_constant() ? e.constant() : evaluate(e, values_of(symbols_, values)));
    return out;
}

at::Tensor DifferentiableFunction::conform(at::Tensor t, const Layout& layout,
                                           const Numbers& values) const {
    const auto options = at::TensorOptions().dtype(layout.dtype).device(device_);
    const Numbers sizes = numbers_of(layout.sizes, values),
                  strides = numbers_of(layout.strides, values);
    if (!t.defined()) return at::empty_strided(sizes, strides, options).zero_();
    if (t.scalar_type() == layout.dtype && t.strides() == c10::IntArrayRef(strides) &&
        t.layout() == c10::kStrided && !t.is_conj() && !t.is_neg())
        return t;
    if (t.layout() != c10::kStrided) t = t.to_dense();
    at::Tensor copy = at::empty_strided(sizes, strides, options);
    return copy.copy_(t);
}

void DifferentiableFunction::make_views(std::vector<at::Tensor>& all, const Numbers& values) const {
    const at::AutoGradMode grad(true);
    for (std::size_t i = 0; i < results_.size(); ++i) {
        const JointRecording::Result& r = results_[i];
        if (r.same_as >= 0) all[i] = all[static_cast<std::size_t>(r.same_as)];  // one before
        if (r.view_of < 0) continue;
        const at::Tensor& base = all[static_cast<std::size_t>(r.view_of)];
        if (r.steps) {
            all[i] = make_view(*numbered(r.steps, values_of(symbols_, values)), base);
            set_creation(all[i], r.marks);
            continue;
        }
        const Numbers sizes = numbers_of(r.sizes, values), strides = numbers_of(r.strides, values);
        const std::int64_t begin = numbers_of({r.offset}, values)[0] + base.storage_offset();
        all[i] = with_bits(base.as_strided(sizes, strides, begin), r.marks);
        set_creation(all[i], r.marks);
    }
}

CallStatus DifferentiableFunction::call(std::span<c10::TensorImpl* const> inputs,
                                        std::vector<at::Tensor>& outputs,
                                        std::span<const std::int64_t> numbers) {
    if (inputs.size() != requires_grad_.size() || torch::autograd::AnomalyMode::is_enabled())
        return CallStatus::OtherInputs;
    for (std::size_t i = 0; i < inputs.size(); ++i)
        if (inputs[i]->requires_grad() != (requires_grad_[i] != 0)) return CallStatus::OtherInputs;
    note_possible_writes();
    auto node = make_node<Node>();
    if (random_) node->random = random_state(device_);
    for (c10::TensorImpl* impl : inputs) node->inputs.push_back(borrow(impl));
    for (std::size_t w = 0; w < written_.size(); ++w)
        if (old_contents_matter_[w])
            node->inputs[written_[w]] = node->inputs[written_[w]].detach().clone();
    std::vector<at::Tensor> all;
    const CallStatus status =
        forward_->call_tracked(inputs, all, numbers, &node->values, node->by_graph);
    node->numbers.assign(numbers.begin(), numbers.end());
    if (status != CallStatus::Done) return status;
    if (least_memory_) trim_between_programs();
    for (const at::Tensor& t : node->inputs)
        node->versions.push_back(t.is_inference() ? 0 : static_cast<std::uint32_t>(t._version()));
    torch::autograd::edge_list edges;
    for (const auto& gradient : gradients_)
        edges.push_back(torch::autograd::impl::gradient_edge(input(inputs, gradient.input)));
    node->function = shared_from_this();
    if (Delivery::is_watched(edges))
        if (auto times = backward_->times()) {
            node->delivery =
                std::make_shared<Delivery>(shared_from_this(), std::move(*times), edges, order_);
            edges = node->delivery->chain();
        }
    node->set_next_edges(std::move(edges));
    std::vector<std::uint32_t> nr_of(passages_.empty() ? 0 : results_.size());
    for (std::size_t i = 0; i < results_.size(); ++i) {
        if (!all[i].defined()) continue;
        if (results_[i].tangent >= 0 && is_passage(i))
            nr_of[i] = node->add_input_metadata(all[i]);
        else if (results_[i].tangent >= 0)
            torch::autograd::set_history(all[i], node);
        else if (!results_[i].requires_grad && all[i].requires_grad())
            all[i] = all[i].detach();
    }
    if (!passages_.empty()) add_passages(passages_, all, node, *node, nr_of);
    make_views(all, node->values);
    const auto keep_unchanged = [&](c10::TensorImpl& t) {
        if (t.is_inference()) return;
        const c10::VariableVersion& version = t.version_counter();
        node->unchanged.emplace_back(version, version.current_version());
    };
    for (std::int32_t i : saved_inputs_) keep_unchanged(*inputs[i]);
    for (std::size_t i = 0; i < results_.size(); ++i)
        if (results_[i].saved && all[i].defined()) keep_unchanged(*all[i].unsafeGetTensorImpl());
    node->saved.reserve(saved_.size());
    for (const Saved& s : saved_) {
        const at::Tensor t =
            s.from == SavedValue::From::Input ? input(inputs, s.index) : all[s.index];
        node->saved.emplace_back(s.unchecked ? t.variable_data() : t, s.is_result);
    }
    all.resize(asked_);
    outputs = std::move(all);
    return CallStatus::Done;
}

}  // namespace ingot::trace
