// The end of a recording: which values leave the graph, and how the caller gets eager's tensors.
//
// Outputs on a storage that came from outside are views of that input. A storage made by the
// program and returned through one tensor leaves as exactly that tensor; one returned through
// several (or through a view that repeats elements) leaves whole, and the tensors are views of it.
#include <unordered_set>

#include "trace/recorder_state.h"
#include "trace/unread_failures.h"
#include "trace/view_steps.h"

namespace ingot::trace {

namespace {

/// Whether two indices can mean the same element.
bool repeats(const SymInts& sizes, const SymInts& strides) {
    std::vector<std::pair<c10::SymInt, c10::SymInt>> dims;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        if (sizes[i] == 0) return false;
        if (sizes[i] > 1) dims.emplace_back(strides[i], sizes[i]);
    }
    std::stable_sort(dims.begin(), dims.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    c10::SymInt reach = 0;
    for (const auto& [stride, size] : dims) {
        if (stride <= reach) return true;
        reach += stride * (size - 1);
    }
    return false;
}

struct Group {
    int members = 0;
    std::int32_t whole = -1;  // the graph output that is the whole base
};

/// Whether it shows all of its storage, as the storage lies.
bool shows_all(const Promise& p) {
    const Cell& cell = *p.cell();
    return !p.is_apart() && !p.view() && cell.dtype == c10::typeMetaToScalarType(p.dtype()) &&
           p.sym_sizes() == c10::SymIntArrayRef(cell.sizes) &&
           p.sym_strides() == c10::SymIntArrayRef(cell.strides);
}

}  // namespace

std::vector<OutputRecipe> RecorderState::describe_outputs(std::span<const at::Tensor> outputs) {
    origin = "output";
    std::vector<OutputRecipe> recipes(outputs.size());
    std::unordered_map<c10::TensorImpl*, std::size_t> first;
    std::unordered_map<const Cell*, Group> groups;
    std::vector<at::Tensor> tensors(outputs.begin(), outputs.end());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        if (!tensors[i].defined()) continue;
        if (as_promise(tensors[i].unsafeGetTensorImpl()) == nullptr)
            tensors[i] =
                inputs[static_cast<std::size_t>(promise(tensors[i]).cell()->input)].promise;
        auto [it, fresh_one] = first.emplace(tensors[i].unsafeGetTensorImpl(), i);
        if (!fresh_one) {
            recipes[i].kind = OutputRecipe::Kind::Same;
            recipes[i].index = static_cast<std::int32_t>(it->second);
            continue;
        }
        ++groups[promise(tensors[i]).cell().get()].members;
    }
    // What others are views of to autograd comes out as that: a write to one of them may give it a
    // history, as in eager.
    std::unordered_set<const c10::TensorImpl*> bases;
    for (const at::Tensor& t : tensors)
        if (t.defined() && t.is_view()) bases.insert(t._base().unsafeGetTensorImpl());
    const c10::Device where = device.value_or(c10::kCPU);
    for (const at::Tensor& t : tensors)
        if (t.defined() && t.device() != where)
            throw NotSupported("an output on another device than the inputs");
    auto describe = [&](OutputRecipe& r, OutputRecipe::Kind kind, std::int32_t index,
                        const Promise& p, const at::Tensor& tensor) {
        if (p.cell()->dtype != c10::typeMetaToScalarType(p.dtype()))
            throw NotSupported("an output that views a storage as another type");
        r.kind = kind;
        r.index = index;
        r.sizes = to_sizes(p.sym_sizes());
        r.strides = to_sizes(p.sym_strides());
        r.offset = unwrap(p.sym_storage_offset() - p.cell()->offset);
        r.detached = !tensor.is_view();
        r.apart = p.is_apart();
        r.marks = marks_of(tensor);
    };
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        OutputRecipe& r = recipes[i];
        if (!tensors[i].defined() || r.kind == OutputRecipe::Kind::Same) continue;
        const Promise& p = promise(tensors[i]);
        const Cell& cell = *p.cell();
        if (cell.input >= 0) {
            const at::Tensor& input = inputs[static_cast<std::size_t>(cell.input)].promise;
            bool itself = input.is_same(tensors[i]) && !p.view() &&
                          p.sym_sizes() == c10::SymIntArrayRef(cell.sizes) &&
                          p.sym_strides() == c10::SymIntArrayRef(cell.strides);
            describe(r, itself ? OutputRecipe::Kind::Input : OutputRecipe::Kind::ViewOfInput,
                     cell.input, p, tensors[i]);
            if (!itself && tensors[i].requires_grad() && !r.detached && !r.apart) {
                const at::Tensor whole[] = {input, kept_[static_cast<std::size_t>(cell.input)]};
                r.steps = steps_between(log, whole, tensors[i]);
            }
            continue;
        }
        Group& group = groups[&cell];
        auto next = static_cast<std::int32_t>(graph.outputs().size());
        const ResultMarks marks = marks_of(tensors[i]);
        const bool viewed = marks.bits() && cell.dtype == c10::typeMetaToScalarType(p.dtype());
        if (group.members == 1 && !viewed && !repeats(p.sym_sizes().vec(), p.sym_strides().vec())) {
            r.kind = OutputRecipe::Kind::Graph;
            r.index = next;
            r.marks = marks;
            graph.add_output(read_memory(p), to_sizes(p.sym_strides()));
            continue;
        }
        if (group.whole < 0) {
            group.whole = next;
            graph.add_output(cell.value, to_sizes(cell.strides));
        }
        if (bases.contains(tensors[i].unsafeGetTensorImpl()) && shows_all(p)) {
            r.kind = OutputRecipe::Kind::Graph;
            r.index = group.whole;
            continue;
        }
        describe(r, OutputRecipe::Kind::ViewOfGraph, group.whole, p, tensors[i]);
    }
    return recipes;
}

void RecorderState::write_inputs() {
    for (std::size_t i = 0; i < input_cells_.size(); ++i) {
        const Cell& cell = *input_cells_[i];
        if (cell.generation == 0) continue;
        inputs[i].silent = !cell.noticed;
        if (repeats(cell.sizes, cell.strides))
            throw NotSupported("a write to an input whose elements overlap");
        graph.mutable_inputs()[i].frozen = false;
        graph.add_output(cell.value, to_sizes(cell.strides), static_cast<std::int32_t>(i));
    }
}

Recording RecorderState::finish(std::span<const at::Tensor> outputs,
                                std::span<const c10::SymInt> computed) {
    std::vector<OutputRecipe> recipes = describe_outputs(outputs);
    write_inputs();
    // A GPU's kernels do not raise: an index out of range there ends eager's process.
    if (device.value_or(c10::kCPU).is_cpu()) keep_failures(graph, *symbols, graph.nodes().size());
    return package(std::move(recipes), computed);
}

Recording RecorderState::package(std::vector<OutputRecipe> recipes,
                                 std::span<const c10::SymInt> computed) {
    // There kernels that the check was to protect would run beside it, and end the process.
    if (assumes && device.value_or(c10::kCPU).is_cuda())
        throw NotSupported("a branch that raises, on a GPU");
    for (const SizeGuard& guard : symbols->guards()) graph.add_guard(guard);
    return Recording{std::move(graph),
                     std::move(inputs),
                     std::move(recipes),
                     std::move(externs),
                     std::move(log),
                     device.value_or(c10::kCPU),
                     uses_random,
                     std::move(numbers),
                     unwrap(c10::SymIntArrayRef(computed.data(), computed.size())),
                     [known = symbols](Expr e) { return known->hint(e); }};
}

}  // namespace ingot::trace
