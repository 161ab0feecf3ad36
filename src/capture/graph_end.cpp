// See graph_end.h.
#include "capture/graph_end.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>
#include <tuple>

#include "bindings/errors.h"
#include "bindings/lock.h"
#include "capture/dropped_gradients.h"
#include "capture/objects.h"
#include "capture/violations.h"
#include "trace/tensors.h"
#include "trace/view_history.h"

namespace ingot::capture {
namespace {

using bindings::raise_in_python;
using bindings::WithoutLock;
using Clock = std::chrono::steady_clock;

template <class T>
void permute(std::vector<T>& values, const std::vector<std::size_t>& order) {
    const std::vector<T> before = values;
    for (std::size_t i = 0; i < order.size(); ++i) values[i] = before[order[i]];
}

}  // namespace

Origin GraphEnd::origin_of(PyObject* o) {
    if (const c10::SymInt* number = numbers_.find(o)) {
        if (const Known* k = world_.find(o); k != nullptr) return world_.origin_of(o);
        return {Origin::Kind::Number, segment_.guards.sizes().add_computed(trace::unwrap(*number))};
    }
    if (const auto number = numbers_.find_float(o)) return {Origin::Kind::Float, *number};
    if (!is_tensor(o)) return world_.origin_of(o);
    const at::Tensor& t = THPVariable_Unpack(o);
    if (recorder_.owns(t)) {
        if (!THPVariable_CheckExact(o))
            return {Origin::Kind::Unknown, -1, "a tensor subclass that was made"};
        return {Origin::Kind::Output, add_output(t)};
    }
    Origin origin = world_.origin_of(o);
    if (origin.kind == Origin::Kind::Fresh)
        return {Origin::Kind::Unknown, -1, "a tensor that no operator made"};
    return origin;
}

std::int32_t GraphEnd::add_output(const at::Tensor& t) {
    const auto [it, fresh] = index_.try_emplace(t.unsafeGetTensorImpl(), outputs_.size());
    if (fresh) outputs_.push_back(t);
    return static_cast<std::int32_t>(it->second);
}

bool GraphEnd::run(const RecordingContext& context, const Transcript& transcript,
                   Counters& counters, Observer* observer, bool may_fail) {
    std::vector<std::string> spent = take_spent();
    assign_inputs(context.backend != nullptr);
    segment_.dropped = find_dropped(world_.cleared_gradients(), segment_);
    for (ClearedGradient& c : segment_.dropped)
        if (PyObject* gradient = std::exchange(c.object, nullptr))
            drop_recorded(gradient, 1 + world_.undo().holds_gradient(gradient));
    const std::size_t operators = recorder_.log().size();
    for (const trace::LoggedCall& call : recorder_.log())
        segment_.operators.push_back(call.op.schema().name());
    segment_.outputs = outputs_.size();
    std::vector<at::Tensor> results;
    trace::CallStatus status = trace::CallStatus::Done;
    const auto start = Clock::now();
    {
        const Quiet quiet;
        if (context.backend != nullptr) {
            histories_.restore();
            order_inputs();
            compile_by_backend(context, transcript);
        } else {
            if (!context.settings.compile.debug.empty()) reproduce(context, transcript, false);
            compile(context, transcript, observer);
        }
    }
    histories_.restore();
    segment_.guards.sizes().close();
    if (segment_.program == nullptr) {
        segment_.inputs.clear();
        return true;
    }
    segment_.program->set_spent(std::move(spent));
    counters.compile_seconds += std::chrono::duration<double>(Clock::now() - start).count();
    std::vector<c10::TensorImpl*> inputs;
    for (const at::Tensor& t : examples_) inputs.push_back(t.unsafeGetTensorImpl());
    const SizeGuards& sizes = segment_.guards.sizes();
    const SymbolValues numbers =
        segment_.program->takes_all_sizes() ? sizes.example_values() : sizes.example_numbers();
    {
        const Quiet quiet;
        WithoutLock unlocked;
        if (segment_.program->is_compiled())
            status = segment_.program->call(inputs, results, numbers);
        else
            results = segment_.program->settled(transcript.run(outputs_));
    }
    const bool fails = status == trace::CallStatus::KernelFailure;
    if (const auto failure = fails ? segment_.program->take_failure() : std::nullopt) {
        bindings::raise_if_final(*failure);
        if (failure->kind == trace::Failure::Kind::Defect)
            throw NotSupported(failure->what);  // it would be at each call
    }
    if (fails && !may_fail)
        throw NotSupported("an operator fails");  // in eager, too, which says it in its own words
    if (!fails && status != trace::CallStatus::Done) throw NotSupported("inputs overlap");
    if (!fails) fulfil_all(outputs_, std::move(results));
    if (segment_.program->is_compiled()) {
        ++counters.graphs;
        const runtime::CompileReport report = segment_.program->report();
        counters.kernels += report.kernels;
        counters.externs += report.externs;
    } else {
        ++state().reasons["not compiled, its calls are made one by one: " + reason_];
    }
    if (bug_) {  // eager could: no mistake of the user's
        const Quiet quiet;
        reproduce(context, transcript, true);
    }
    if (segment_.program->has_backward() || backwards_.any()) ++counters.training;
    counters.operators += static_cast<std::int64_t>(operators);
    for (const Segment::Input& in : segment_.inputs)
        if (in.pinned) {
            PinnedTensor& t = segment_.guards.tensors[static_cast<std::size_t>(in.index)];
            t.covered = !t.inspected && segment_.program->checks_inputs();
        }
    return !fails;
}

std::vector<std::string> GraphEnd::take_spent() {
    std::vector<std::string> names;
    for (const at::Tensor& t : outputs_) {
        if (backwards_.any()) trace::settle_history(t);
        names.push_back(backwards_.spent(t));
    }
    for (std::size_t i = 0; i < names.size(); ++i)
        if (!names[i].empty()) autograd_meta_of(*outputs_[i].unsafeGetTensorImpl()).reset();
    return names;
}

void GraphEnd::compile(const RecordingContext& context, const Transcript& transcript,
                       Observer* observer) {
    try {
        std::optional<Session> session;
        if (observer != nullptr) session.emplace(observer);
        const WithoutLock unlocked;
        bindings::Settings settings = context.settings;
        if (backwards_.any()) settings.compile.memory_budget = settings.memory_budget;
        segment_.program = SegmentProgram::compile(recorder_, examples_, promises_, outputs_,
                                                   settings, *context.arena_of_steps);
        if (segment_.program) segment_.program->name_inputs(names_);
        return;
    } catch (const NotSupported& e) {
        if (observer != nullptr) {
            PyErr_Clear();  // the engine leaves the program's error behind
            const std::string what = e.what();
            throw NeedsBreaks(what.substr(0, what.find('\n')));
        }
        if (!context.settings.fallback && !numbers_.any()) raise_in_python();
        reason_ = e.what();
    } catch (const runtime::Interrupted&) {
        raise_in_python();
    } catch (const runtime::MissingCompiler&) {
        raise_in_python();  // eager would do, but it is not what the options ask for
    } catch (const std::exception& e) {
        if (!context.settings.fallback && !numbers_.any()) raise_in_python();
        reason_ = e.what();
        bug_ = true;
    }
    if (numbers_.any()) throw NeedsNumbers(reason_, recorder_.symbols()->any());
    if (recorder_.assumes()) throw NotSupported(reason_);  // calls would raise in other words
    const WithoutLock unlocked;
    segment_.program =
        SegmentProgram::of_log(transcript.log, transcript.inputs, promises_, outputs_);
}

void GraphEnd::compile_by_backend(const RecordingContext& context, const Transcript& transcript) {
    const std::vector<Expr> sizes = segment_.guards.sizes().symbols();
    const LogParts parts{transcript.log, transcript.inputs,    examples_, promises_,
                         outputs_,       *recorder_.symbols(), sizes};
    try {
        segment_.program =
            SegmentProgram::compile_by(context.backend, parts, segment_.guards.modes.grad);
    } catch (const NotSupported& e) {
        if (!numbers_.any()) throw;
        throw NeedsNumbers(e.what(), false);
    } catch (pybind11::error_already_set& e) {
        if (!numbers_.any() || !e.matches(PyExc_Exception)) throw;
        // Numbers are for a backend that takes no symbols where nobody has asked for them. One that
        // is broken fails on numbers, too, and that is its user's business now.
        if (context.dynamic == Dynamic::Always) throw;
        const LogParts fixed{transcript.log, transcript.inputs,    examples_, promises_,
                             outputs_,       *recorder_.symbols(), {}};
        (void)SegmentProgram::compile_by(context.backend, fixed, segment_.guards.modes.grad);
        const std::string what = e.what();
        throw NeedsNumbers(
            "a backend fails on symbolic numbers: " + what.substr(0, what.find('\n')), false);
    }
    if (segment_.program == nullptr) return;
    // The number is a guard: another one gets a graph of its own, and may be no special case there.
    trace::SymbolicSizes& symbols = *recorder_.symbols();
    static const std::string origin = "the backend";
    symbols.set_origin(&origin);
    const std::vector<std::string> fixed = segment_.program->fixes();
    for (const Expr symbol : sizes)
        if (std::ranges::find(fixed, to_string(symbol)) != fixed.end())
            (void)symbols.decide(SizeGuard::Relation::Eq, symbol, symbols.hint(symbol));
    symbols.set_origin(nullptr);
    for (const std::size_t place : segment_.program->fixes_floats())
        segment_.guards.floats.fix(segment_.inputs[place].index);
    if (!fixed.empty()) refuse_fixed_marks(symbols, segment_.guards, {});
}

void GraphEnd::reproduce(const RecordingContext& context, const Transcript& transcript,
                         bool failed) {
    if (context.reproduce == nullptr) return;
    try {
        std::vector<at::Tensor> examples = examples_, promises = promises_;
        const std::vector<std::size_t> order = readable_order();
        permute(examples, order);
        permute(promises, order);
        const pybind11::tuple log = describe({transcript.log,
                                              transcript.inputs,
                                              examples,
                                              promises,
                                              outputs_,
                                              *recorder_.symbols(),
                                              {}},
                                             segment_.guards.modes.grad);
        pybind11::reinterpret_borrow<pybind11::object>(context.reproduce)(
            failed ? pybind11::object(pybind11::str(reason_)) : pybind11::none(), *log);
    } catch (const std::exception&) {
        PyErr_Clear();  // the run goes on without it
    }
}

void GraphEnd::assign_inputs(bool for_backend) {
    const auto sources = recorder_.inputs();
    const bool training = backwards_.any() || recorder_.needs_backward(outputs_);
    for (std::size_t i = 0; i < sources.size(); ++i) {
        at::Tensor real = sources[i].captured;
        if (!real.defined()) continue;
        const at::Tensor promise = sources[i].promise;
        PyObject* object = python_object(real);
        const Known* known = object == nullptr ? nullptr : world_.find(object);
        if (const auto number = numbers_.float_input(real)) {
            segment_.inputs.push_back({false, *number, true});
            if (real.is_cuda() && for_backend)  // it takes the number from a tensor here
                real = trace::number_tensor(numbers_.example(*number));
            else if (real.is_cuda())
                segment_.inputs.back().on_gpu = std::make_shared<trace::GpuNumber>(real.device());
            recorder_.give(i, false);
        } else if (known == nullptr) {
            continue;
        } else if (known->tensor >= 0) {
            segment_.inputs.push_back({true, known->tensor});
            // What is being trained changes too often to be folded or packed.
            recorder_.give(i, !training || !real.requires_grad());
        } else if (known->dynamic()) {
            segment_.inputs.push_back({false, known->node});
            recorder_.give(i, false);
        } else {
            continue;
        }
        examples_.push_back(real);
        promises_.push_back(promise);
        const bool outside = known != nullptr && known->tensor >= 0;
        names_.push_back(outside ? segment_.guards.path(known->place) : std::string());
    }
}

std::vector<std::size_t> GraphEnd::readable_order() const {
    std::vector<std::size_t> order(examples_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        const Segment::Input &x = segment_.inputs[a], &y = segment_.inputs[b];
        return std::tuple(x.pinned, !x.number, x.index) < std::tuple(y.pinned, !y.number, y.index);
    });
    return order;
}

void GraphEnd::order_inputs() {
    const std::vector<std::size_t> order = readable_order();
    permute(segment_.inputs, order);
    permute(examples_, order);
    permute(promises_, order);
    permute(names_, order);
}

}  // namespace ingot::capture
