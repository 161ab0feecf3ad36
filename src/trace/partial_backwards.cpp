// See partial_backwards.h.
#include "trace/partial_backwards.h"

#include <algorithm>

#include "passes/backward_part.h"
#include "trace/extern_host.h"

namespace ingot::trace {
namespace {

using Kind = OutputRecipe::Kind;

bool looks_into_input(const OutputRecipe& r) {
    return r.kind == Kind::Input || r.kind == Kind::ViewOfInput;
}
bool looks_into_output(const OutputRecipe& r) {
    return r.kind == Kind::Graph || r.kind == Kind::ViewOfGraph;
}

std::int32_t place_of(const std::vector<std::int32_t>& list, std::int32_t value) {
    return static_cast<std::int32_t>(std::ranges::find(list, value) - list.begin());
}

/// The recipes of the wanted results alone. One that was the same as another is on its own where
/// that is not wanted.
std::vector<OutputRecipe> recipes_for(std::span<const OutputRecipe> all,
                                      const std::vector<bool>& wanted) {
    std::vector<OutputRecipe> recipes(all.size());
    std::vector<std::int32_t> first(all.size(), -1);  // by the result that they are the same as
    for (std::size_t i = 0; i < all.size(); ++i) {
        if (!wanted[i]) continue;
        const auto source = all[i].kind == Kind::Same ? static_cast<std::size_t>(all[i].index) : i;
        if (first[source] < 0) {
            first[source] = static_cast<std::int32_t>(i);
            recipes[i] = all[source];
        } else {
            recipes[i].kind = Kind::Same;
            recipes[i].index = first[source];
        }
    }
    return recipes;
}

}  // namespace

std::vector<at::Tensor> stand_ins(const Graph& backward, c10::Device device) {
    std::vector<at::Tensor> made;
    for (const Input& in : backward.inputs()) {
        const Type& type = backward.type(in.value);
        runtime::Layout empty;
        empty.dtype = type.dtype;
        empty.sizes.assign(type.sizes.size(), 1);
        empty.strides.assign(type.sizes.size(), 1);
        made.push_back(tensor_over(nullptr, empty, device));
    }
    return made;
}

PartialBackwards::PartialBackwards(const CompiledFunction& whole, std::size_t saved,
                                   std::vector<Expr> numbers,
                                   std::function<std::int64_t(Expr)> hint, c10::Device device,
                                   std::shared_ptr<const runtime::Compiler> compiler,
                                   runtime::CompileOptions options)
    : whole_(whole),
      saved_(saved),
      numbers_(std::move(numbers)),
      hint_(std::move(hint)),
      device_(device),
      compiler_(std::move(compiler)),
      options_(std::move(options)) {}

std::shared_ptr<const PartialBackwards::Form> PartialBackwards::form(
    const std::vector<bool>& defined, const std::vector<bool>& wanted) {
    std::lock_guard lock(mutex_);
    const auto key = std::pair(defined, wanted);
    if (const auto found = forms_.find(key); found != forms_.end()) return found->second;
    if (forms_.size() >= kMostForms) return nullptr;
    std::shared_ptr<const Form> made;
    try {
        made = make(defined, wanted);
    } catch (const std::exception&) {
        // Eager's backward serves, also when the same gradients come again.
    }
    forms_.emplace(key, made);
    return made;
}

std::shared_ptr<const PartialBackwards::Form> PartialBackwards::make(
    const std::vector<bool>& defined, const std::vector<bool>& wanted) const {
    const Graph& graph = whole_.graph();
    Recording part;
    part.device = device_;
    part.numbers = numbers_;
    part.hint = hint_;
    part.externs = whole_.externs();
    part.outputs = recipes_for(whole_.recipes(), wanted);
    BackwardQuery query;
    query.kept.assign(graph.inputs().size(), false);
    query.wanted.assign(graph.outputs().size(), false);
    for (std::size_t i = 0; i < graph.inputs().size(); ++i) {
        query.tangents.push_back(i >= saved_);
        query.missing.push_back(i >= saved_ && !defined[i - saved_]);
    }
    for (const OutputRecipe& r : part.outputs) {
        if (looks_into_input(r)) query.kept[r.index] = true;
        if (looks_into_output(r)) query.wanted[r.index] = true;
    }
    auto form = std::make_shared<Form>();
    {
        std::lock_guard turn(graph.pool().turn());
        BackwardPart made = backward_part(graph, query);
        part.graph = std::move(made.graph);
        form->inputs = std::move(made.inputs);
        for (OutputRecipe& r : part.outputs) {
            if (looks_into_input(r)) r.index = place_of(form->inputs, r.index);
            if (looks_into_output(r)) r.index = place_of(made.outputs, r.index);
        }
    }
    const std::vector<at::Tensor> shown = stand_ins(part.graph, device_);
    for (const at::Tensor& t : shown) part.inputs.push_back({t, at::Tensor()});
    form->program = std::make_unique<CompiledFunction>(
        std::move(part), shown, shown, std::vector<at::Tensor>{}, compiler_, options_);
    form->program->share_arena(arena_);
    std::vector<CompiledFunction::Reading> readings;
    for (const std::int32_t i : form->inputs) readings.push_back(readings_[i]);
    form->program->set_readings(std::move(readings));
    form->program->share_graph_memory(graph_memory_);
    return form;
}

}  // namespace ingot::trace
