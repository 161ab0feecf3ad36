// The session: dispatching operators to lowerings, decompositions or extern calls; see recorder.h.
#include "trace/recorder.h"

#include <ATen/autocast_mode.h>
#include <c10/core/AutogradState.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "trace/autograd.h"
#include "trace/fused_steps.h"
#include "trace/gpu.h"
#include "trace/lower/call.h"
#include "trace/lower/conv.h"
#include "trace/lower/promote.h"
#include "trace/mode.h"
#include "trace/overlap.h"
#include "trace/recorder_state.h"
#include "trace/tensors.h"

namespace ingot::trace {

namespace {

/// Calls made while this is alive do not come back to the recorder.
struct Unrecorded {
    c10::impl::ExcludeDispatchKeyGuard guard{
        c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot})};
};

bool is_written(const c10::Argument& a) {
    return a.alias_info() != nullptr && a.alias_info()->isWrite();
}

bool has_out(const c10::FunctionSchema& schema) {
    return std::any_of(schema.arguments().begin(), schema.arguments().end(),
                       [](const c10::Argument& a) { return a.kwarg_only() && is_written(a); });
}

/// Operators whose decomposition would look at data, though the call itself can be recorded.
bool stays_a_call(const c10::OperatorHandle& op) {
    // What else comes with a kernel for metadata need not be taken apart: it is the program's own.
    const std::string& name = op.operator_name().name;
    if (!name.starts_with("aten::") && op.hasKernelForDispatchKey(c10::DispatchKey::Meta) &&
        op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd))
        return true;
    return name == "aten::_linalg_check_errors";
}

/// Products of float16, which processors leave to the library: it adds what is to be added before
/// it rounds.
bool is_half_with_bias(const std::string& name, const torch::jit::Stack& stack,
                       const c10::OperatorHandle& op) {
    if (name != "aten::addmm" && name != "aten::baddbmm") return false;
    const c10::IValue& self = stack[stack.size() - op.schema().arguments().size()];
    return self.toTensor().is_cpu() && self.toTensor().scalar_type() == c10::kHalf;
}

/// Stores a lowering's result in the tensor an in-place or out= operator names.
void store(Call& call, const Call::Result& result, const at::Tensor& target, bool resizes) {
    Emitter& e = call.emit();
    ValueId value = result.fresh != kNone ? result.fresh : call.read(result.value.toTensor());
    if (!c10::canCast(to_scalar_type(e.dtype(value)), target.scalar_type()))
        throw UserError("the result type cannot be cast to the output's type");
    // Reductions, scans and gathers insist on their type, pointwise operators convert.
    if (resizes && to_dtype(target.scalar_type()) != e.dtype(value))
        throw NotSupported("an output tensor of another type");
    SymInts sizes = e.sizes(value);
    if (target.sym_sizes() != c10::SymIntArrayRef(sizes)) {
        if (!resizes || target.sym_numel() != 0)
            throw NotSupported("an output tensor of another size");
        ValueId typed = e.convert(value, to_dtype(target.scalar_type()));
        at::Tensor fresh = call.state().fresh(
            typed, result.strides.size() == sizes.size() ? result.strides : contiguous(sizes),
            target.device());
        Promise& p = call.promise(target);
        if (p.cell()->input >= 0) throw NotSupported("an input is resized");
        Promise& q = call.promise(fresh);
        p.become(q.cell(), q.view(), q.sym_sizes().vec(), q.sym_strides().vec(), 0);
        return;
    }
    call.write(target, value);
}

/// Whether it writes to a tensor that is no promise.
bool writes_outside(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
    const auto& formal = op.schema().arguments();
    const std::size_t below = stack.size() - formal.size();
    for (std::size_t i = 0; i < formal.size(); ++i) {
        if (!is_written(formal[i]) || !stack[below + i].isTensor()) continue;
        const at::Tensor t = stack[below + i].toTensor();
        if (t.defined() && !is_promise(t)) return true;
    }
    return false;
}

}  // namespace

void RecorderState::log_call(const c10::OperatorHandle& op, std::vector<c10::IValue> arguments,
                             const torch::jit::Stack& stack) {
    std::size_t n = op.schema().returns().size();
    for (c10::IValue& v : arguments) v = promised(v);
    std::vector<c10::IValue> results;
    for (auto it = stack.end() - static_cast<std::ptrdiff_t>(n); it != stack.end(); ++it)
        results.push_back(promised(*it));
    log.push_back({op, std::move(arguments), std::move(results), c10::GradMode::is_enabled()});
}

c10::IValue RecorderState::promised(const c10::IValue& value) const {
    return map_tensors(value, [&](const at::Tensor& t) {
        const auto found = t.defined() ? captured_.find(t.unsafeGetTensorImpl()) : captured_.end();
        return found == captured_.end() ? t : found->second;
    });
}

/// A write of something that needs a gradient gives the written tensor a history. An outside one
/// would keep the recording's.
void RecorderState::refuse_history(const c10::OperatorHandle& op,
                                   const torch::jit::Stack& stack) const {
    const auto& formal = op.schema().arguments();
    bool outside = false, gradient = false;
    const auto look = [&](const at::Tensor& t, bool written) {
        if (!t.defined()) return;
        gradient = gradient || t.requires_grad();
        if (!written) return;
        const Promise* p = as_promise(t.unsafeGetTensorImpl());
        outside = outside || p == nullptr || p->cell()->input >= 0;
    };
    const std::size_t below = stack.size() - formal.size();
    for (std::size_t i = 0; i < formal.size(); ++i) {
        // Statistics that an operator updates beside its work have no gradients.
        const bool written = is_written(formal[i]) && (i == 0 || formal[i].kwarg_only());
        for_each_tensor(stack[below + i], [&](const at::Tensor& t) { look(t, written); });
    }
    if (outside && gradient) throw NotSupported("a tensor from outside gets a gradient's history");
}

/// A write whose operands lie partly in the written memory is eager's: it raises, or depends on the
/// order of the elements. So does one to elements that lie over each other.
void RecorderState::refuse_overlap(const c10::OperatorHandle& op,
                                   const torch::jit::Stack& stack) const {
    const auto& formal = op.schema().arguments();
    const std::size_t below = stack.size() - formal.size();
    struct Operand {
        std::size_t argument;
        at::Tensor tensor;   // the promise of one that is known, else itself
        const void* memory;  // its cell, else itself
    };
    std::vector<Operand> operands;
    for (std::size_t i = 0; i < formal.size(); ++i)
        for_each_tensor(stack[below + i], [&](const at::Tensor& t) {
            if (!t.defined() || t.layout() != c10::kStrided) return;
            if (is_written(formal[i]) && overlaps_itself(t, *symbols))
                throw NotSupported("a write to elements that lie over each other");
            // A tensor of the outside may be given as it is beside a view of it, a promise.
            at::Tensor known = promised(t).toTensor();
            const void* memory = known.unsafeGetTensorImpl();
            if (const Promise* p = as_promise(known.unsafeGetTensorImpl()))
                memory = p->cell().get();
            operands.push_back({i, std::move(known), memory});
        });
    const bool elementwise = op.hasTag(at::Tag::pointwise) || op.schema().name() == "aten::copy_";
    for (const Operand& written : operands) {
        if (!is_written(formal[written.argument])) continue;
        for (const Operand& read : operands) {
            if (read.memory != written.memory || read.argument == written.argument) continue;
            const Overlap found = overlap(written.tensor, read.tensor, *symbols);
            if (found == Overlap::Part || (found == Overlap::Same && !elementwise))
                throw NotSupported("a write over memory that another operand reads");
        }
    }
}

void RecorderState::log_copy(const at::Tensor& promise, const at::Tensor& copy) {
    static const c10::OperatorHandle detach =
        c10::Dispatcher::singleton().findSchemaOrThrow("aten::detach", "");
    log.push_back({detach, {promise}, {copy}, c10::GradMode::is_enabled()});
}

bool RecorderState::lower(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
    const c10::FunctionSchema& schema = op.schema();
    std::string_view name = schema.operator_name().name;
    Lowering lowering = find_lowering(name);
    bool in_place = false;
    if (lowering == nullptr && name.ends_with('_') && !name.ends_with("__")) {
        lowering = find_lowering(name.substr(0, name.size() - 1));
        in_place = true;
    }
    if (lowering == nullptr) return false;
    std::size_t count = schema.arguments().size();
    std::vector<c10::IValue> arguments(stack.end() - static_cast<std::ptrdiff_t>(count),
                                       stack.end());
    bool out = has_out(schema);
    std::vector<at::Tensor> targets;
    if (in_place || out)
        for (std::size_t i = 0; i < count; ++i)
            if (is_written(schema.arguments()[i])) {
                if (!arguments[i].isTensor()) return false;  // tensor lists: decomposed
                targets.push_back(arguments[i].toTensor());
            }
    Unrecorded unrecorded;
    Call call(*this, op, arguments);
    if (!targets.empty()) call.target = targets[0];
    try {
        lowering(call);
    } catch (const NotSupported&) {
        return false;  // a decomposition or a call may still do; nothing has been written
    }
    std::vector<Call::Result>& results = call.results();
    torch::jit::drop(stack, count);
    if (!targets.empty()) {
        check(results.size() >= targets.size(), "a lowering gives fewer results than its operator");
        for (std::size_t i = 0; i < targets.size(); ++i) store(call, results[i], targets[i], out);
        for (std::size_t i = 0; i < schema.returns().size(); ++i) stack.emplace_back(targets[i]);
    } else {
        check(results.size() == schema.returns().size(),
              "a lowering gives another number of results than its operator");
        for (Call::Result& r : results) {
            if (r.fresh != kNone)
                stack.emplace_back(fresh(r.fresh, r.strides, r.device));
            else
                stack.push_back(std::move(r.value));
        }
    }
    log_call(op, std::move(arguments), stack);
    return true;
}

void RecorderState::read_stand_ins(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
    const std::size_t count = op.schema().arguments().size();
    const auto own = [this](const c10::IValue& v) -> c10::IValue {
        return v.isSymFloat() && own_float ? c10::IValue(own_float(v.toSymFloat())) : v;
    };
    for (std::size_t i = stack.size() - count; i < stack.size(); ++i) {
        stack[i] = own(stack[i]);
        if (stack[i].isList() && symbols->any_floats()) {
            c10::List<c10::IValue> list = stack[i].toList();
            for (std::size_t k = 0; k < list.size(); ++k)
                if (const c10::IValue e = list.get(k); e.isSymFloat()) list.set(k, own(e));
        }
        if (!stack[i].isTensor()) continue;
        const at::Tensor t = stack[i].toTensor();
        if (!t.defined() || !t.unsafeGetTensorImpl()->is_wrapped_number() || is_promise(t))
            continue;
        const std::optional<c10::Scalar> number = read_number(t);
        if (!number) continue;
        if (number->isSymbolic() && number->isFloatingPoint()) {
            const c10::IValue mine = own(c10::IValue(*number));
            if (contents(mine.toSymFloat()).defined()) {
                stack[i] = wrapped(mine.toScalar());
                continue;
            }
        }
        Unrecorded unrecorded;
        at::Tensor actual;
        if (number->isSymbolic() && number->isIntegral(false)) {
            Emitter e(graph, *symbols, origin);
            actual = fresh(e.size_value(DType::I64, number->toSymInt()), {}, c10::kCPU);
            // No operator made it; the log of calls needs one that does.
            static const c10::OperatorHandle scalar_tensor =
                c10::Dispatcher::singleton().findSchemaOrThrow("aten::scalar_tensor", "");
            const c10::IValue none, dtype(static_cast<std::int64_t>(c10::kLong));
            log.push_back({scalar_tensor,
                           {c10::IValue(*number), dtype, none, none, none},
                           {actual},
                           c10::GradMode::is_enabled()});
        } else {
            actual =
                at::scalar_tensor(number->isBoolean()         ? c10::Scalar(number->toBool())
                                  : number->isIntegral(false) ? c10::Scalar(number->toLong())
                                                              : c10::Scalar(number->toDouble()),
                                  t.options());
        }
        actual.unsafeGetTensorImpl()->set_wrapped_number(true);
        stack[i] = actual;
    }
}

/// A real tensor that has symbolic sizes came here by a way on which nobody put its promise in its
/// place: its sizes may have been read as numbers.
void RecorderState::specialise_met(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
    const std::size_t count = op.schema().arguments().size();
    for (const c10::IValue& v : std::span(stack).last(count))
        for_each_tensor(v, [&](const at::Tensor& t) {
            if (!t.defined()) return;
            const auto found = captured_.find(t.unsafeGetTensorImpl());
            if (found != captured_.end()) concrete(found->second.sym_sizes());
        });
}

at::Tensor RecorderState::keep_meta(at::Tensor t) { return metas_.emplace_back(std::move(t)); }

bool RecorderState::run_on_metas(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
    const std::size_t count = op.schema().arguments().size();
    bool all = true, any = false;
    for (const c10::IValue& v : std::span(stack).last(count))
        for_each_tensor(v, [&](const at::Tensor& t) {
            any = any || t.defined();
            all = all && (!t.defined() || std::ranges::any_of(metas_, [&](const at::Tensor& m) {
                      return m.is_same(t);
                  }));
        });
    if (!any || !all) return false;
    const WithoutMode no_mode(*this);
    op.callBoxed(stack);
    for (const c10::IValue& v : std::span(stack).last(op.schema().returns().size()))
        for_each_tensor(v, [&](const at::Tensor& t) {
            if (t.defined()) keep_meta(t);
        });
    return true;
}

namespace {

/// What keeps eager's gradient from being recorded, or nothing. That of complex eigenvectors is
/// defined only for what does not depend on their phases: eager's looks at the data whether it is,
/// and raises if not. It leaves that out on promises.
std::string_view unrecorded_gradient(const c10::OperatorHandle& op,
                                     std::span<const c10::IValue> arguments) {
    const std::string& name = op.schema().name();
    const bool eigenvectors = name == "aten::_linalg_eigh", embedding = name == "aten::embedding";
    if ((!eigenvectors && !embedding) || !at::GradMode::is_enabled()) return {};
    const at::Tensor& operand = arguments[0].toTensor();
    if (!operand.requires_grad()) return {};
    if (eigenvectors && operand.is_complex()) return "its gradient checks the data";
    return embedding && arguments[4].toBool() ? "its gradient is sparse" : "";
}

/// Whether PyTorch's graph, as it was built for promises, holds nothing of what the call is given.
bool is_apart_from_gradients(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) {
    bool apart = true;
    const auto look = [&](const at::Tensor& t) {
        apart = apart && !(t.defined() && t.requires_grad());
    };
    const std::string& name = op.schema().operator_name().name;
    const bool numbers = name == "aten::_local_scalar_dense" || name == "aten::nonzero";
    if (c10::GradMode::is_enabled() && !numbers)
        for (const c10::IValue& v : arguments) for_each_tensor(v, look);
    return apart;
}

}  // namespace

void RecorderState::dispatch(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
    if (!give_up || depth_ != 0) return record(op, stack);
    const auto count = static_cast<std::ptrdiff_t>(op.schema().arguments().size());
    const torch::jit::Stack arguments(stack.end() - count, stack.end());
    const std::size_t below = stack.size() - arguments.size(), calls = log.size();
    try {
        return record(op, stack);
    } catch (const std::exception&) {
        const bool begun =
            std::any_of(log.begin() + static_cast<std::ptrdiff_t>(calls), log.end(),
                        [](const LoggedCall& c) { return c.op.schema().is_mutable(); });
        const bool told = begun || !is_apart_from_gradients(op, arguments);
        if (!give_up(told ? std::string_view() : *failure) || told) throw;
    }
    stack.resize(below);
    stack.insert(stack.end(), arguments.begin(), arguments.end());
    op.callBoxed(stack);
}

void RecorderState::record(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
    try {
        const auto& id = op.schema().operator_name();
        origin = id.overload_name.empty() ? id.name : id.name + "." + id.overload_name;
        if (follows_gradients && c10::GradMode::is_enabled() && op.schema().is_mutable())
            refuse_history(op, stack);
        if (!metas_.empty() && run_on_metas(op, stack)) return;
        if (op.schema().is_mutable()) refuse_overlap(op, stack);
        if (symbols->any() || symbols->any_floats()) {
            specialise_met(op, stack);
            if (read_number) read_stand_ins(op, stack);
        }
        const bool refused =
            eager_refuses(op, std::span(stack).last(op.schema().arguments().size()));
        // Where the program can be left, eager raises when it is this operator's turn.
        if (refused && (follows_gradients || refuses_gradients))
            throw NotSupported("eager takes no operands of this type");
        if (const auto why =
                unrecorded_gradient(op, std::span(stack).last(op.schema().arguments().size()));
            !why.empty())
            throw NotSupported(std::string(why));
        if (refused || stays_a_call(op) || is_half_with_bias(id.name, stack, op) ||
            (id.name == "aten::convolution" && adds_bias_late(*this, std::span(stack).last(9))))
            return record_extern(op, stack);
        if (run_fused_step(op, stack)) return;
        if (lower(op, stack)) return;
        for (auto key : {c10::DispatchKey::CompositeImplicitAutograd,
                         c10::DispatchKey::CompositeExplicitAutograd}) {
            if (!op.hasKernelForDispatchKey(key)) continue;
            // A kernel such as that of copy_ would write to the tensor itself.
            if (key == c10::DispatchKey::CompositeExplicitAutograd && writes_outside(op, stack))
                continue;
            if (depth_ > 40) throw NotSupported(origin + ": a decomposition without end");
            struct Depth {
                int& depth;
                explicit Depth(int& d) : depth(d) { ++depth; }
                ~Depth() { --depth; }
            } deeper(depth_);
            const torch::jit::Stack arguments(
                stack.end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size()),
                stack.end());
            const std::size_t below = stack.size() - arguments.size(), calls = log.size();
            const auto forget_calls = [&] {
                log.erase(log.begin() + static_cast<std::ptrdiff_t>(calls), log.end());
            };
            try {
                op.callBoxedForDispatchKey(key, stack);
                // Autograd knows this operator, not what its kernel calls (out= forms, above all).
                if (key == c10::DispatchKey::CompositeExplicitAutograd) {
                    forget_calls();
                    log_call(op, arguments, stack);
                }
            } catch (const c10::Error& e) {
                // A kernel, not a decomposition: it asked for data. The call itself may do.
                if (std::string_view(e.what_without_backtrace()).find("storage") ==
                    std::string_view::npos)
                    throw;
                forget_calls();
                stack.resize(below);
                stack.insert(stack.end(), arguments.begin(), arguments.end());
                record_extern(op, stack);
            }
            return;
        }
        record_extern(op, stack);
    } catch (const std::exception& e) {
        if (!failure) {
            std::string what = e.what();
            failure = op.schema().operator_name().name + ": " + what.substr(0, what.find('\n'));
        }
        throw;
    }
}

void RecorderState::assume(const at::Tensor& condition) {
    static const c10::OperatorHandle op =
        c10::Dispatcher::singleton().findSchemaOrThrow("aten::_assert_async", "msg");
    static const std::string message = "a condition without which the program raises";
    origin = "assumption";
    Emitter e(graph, *symbols, origin);
    e.op(Prim::Assert, {read(promise(condition))}, {{"message", message}});
    log.push_back({op, {condition, message}, {}, c10::GradMode::is_enabled()});
    assumes = true;
}

Recorder::Recorder() : state_(std::make_unique<RecorderState>()) {
    state_->symbols->set_origin(&state_->origin);
}
Recorder::~Recorder() { state_->symbols->set_origin(nullptr); }

at::Tensor Recorder::add_input(const at::Tensor& real, bool frozen, std::string name,
                               std::span<const SymbolicSize> sizes, std::optional<c10::Device> as) {
    return state_->add_input(real, frozen, std::move(name), false, sizes, as);
}
// Autocast keeps the casts of parameters until its outermost context ends: one that eager made
// would be a constant of the recording, one that is recorded here would be taken by eager.
Recorder::Scope::Scope(Recorder& recorder)
    : replayed_views_(c10::AutogradState::get_tls_state().get_view_replay_enabled()) {
    at::autocast::clear_cache();
    c10::AutogradState::get_tls_state().set_view_replay_enabled(true);
    push_mode(*recorder.state_);
    const auto& device = recorder.state_->device;
    const bool gpu = device && device->is_cuda(), gradients = c10::GradMode::is_enabled();
    if (recorder.state_->symbols->any() || (gpu && gradients))
        composites_ = std::make_unique<OwnComposites>();
    // Without gradients autograd would only take composite operators apart, attention above all.
    if (gpu && !gradients) below_autograd_.emplace();
}
at::Tensor Recorder::add_input(const at::Tensor& real, bool frozen, std::string name) {
    return state_->add_input(real, frozen, std::move(name), false, {}, {});
}
c10::SymInt Recorder::add_number(std::int64_t example, const SymbolicSize& symbol) {
    const Expr e = state_->symbols->symbol(symbol.name, example, symbol.range);
    state_->numbers.push_back(e);
    return state_->symbols->wrap(e);
}
Recorder::Scope::~Scope() {
    pop_mode();
    c10::AutogradState::get_tls_state().set_view_replay_enabled(replayed_views_);
    at::autocast::clear_cache();
}
void Recorder::Scope::take_composites_apart() {
    if (!composites_) composites_ = std::make_unique<OwnComposites>();
}
at::Tensor Recorder::meet(const at::Tensor& real, std::span<const SymbolicSize> sizes) {
    at::Tensor promise = state_->add_input(
        real, false, "met" + std::to_string(state_->inputs.size()), true, sizes, {});
    if (state_->follows_gradients && real.requires_grad()) promise.set_requires_grad(true);
    return promise;
}
at::Tensor Recorder::leaf_for(const at::Tensor& met) const {
    const auto found = state_->captured_.find(met.unsafeGetTensorImpl());
    const bool leaf = found != state_->captured_.end() && is_own_leaf(found->second);
    return leaf ? found->second : at::Tensor();
}
at::Tensor Recorder::met_by(const at::Tensor& promise) const {
    const Promise* p = as_promise(promise.unsafeGetTensorImpl());
    if (p == nullptr || p->cell()->owner != state_.get() || p->cell()->input < 0) return {};
    const InputSource& source = state_->inputs[static_cast<std::size_t>(p->cell()->input)];
    return source.promise.is_same(promise) ? source.captured : at::Tensor();
}
std::shared_ptr<SymbolicSizes> Recorder::symbols() const { return state_->symbols; }
void Recorder::set_giver(Giver give_up) { state_->give_up = std::move(give_up); }
void Recorder::set_number_reader(NumberReader read, FloatReader unwrap) {
    state_->read_number = std::move(read);
    state_->own_float = std::move(unwrap);
}
c10::SymFloat Recorder::add_float(double example, c10::Device device, at::Tensor& real) {
    real = device.is_cpu() ? number_tensor(example) : GpuNumber(device).get(example);
    const at::Tensor promise = state_->add_input(
        real, false, "number" + std::to_string(state_->inputs.size()), true, {}, {});
    // To PyTorch it is a number: it decides less about results' types.
    promise.unsafeGetTensorImpl()->set_wrapped_number(true);
    return state_->symbols->wrap(promise, example);
}
Recording Recorder::finish(std::span<const at::Tensor> outputs,
                           std::span<const c10::SymInt> numbers) {
    return state_->finish(outputs, numbers);
}
JointRecording Recorder::finish_joint(std::span<const at::Tensor> outputs) {
    return state_->finish_joint(outputs);
}
const std::optional<std::string>& Recorder::failure() const { return state_->failure; }
void Recorder::clear_failure() { state_->failure.reset(); }
bool Recorder::take_back_calls(std::size_t first) {
    auto& log = state_->log;
    const auto begin = log.begin() + static_cast<std::ptrdiff_t>(std::min(first, log.size()));
    const bool acted = std::any_of(begin, log.end(), [](const LoggedCall& call) {
        return call.op.schema().is_mutable() || call.op.hasTag(at::Tag::nondeterministic_seeded);
    });
    log.erase(begin, log.end());
    return acted;
}
void Recorder::refuse_gradients() { state_->refuses_gradients = true; }
bool Recorder::refused_gradient() const { return state_->refused_gradient; }
void Recorder::follow_gradients() { state_->follows_gradients = true; }
bool Recorder::needs_backward(std::span<const at::Tensor> outputs) const {
    return std::any_of(outputs.begin(), outputs.end(), [&](const at::Tensor& t) {
        return owns(t) && t.requires_grad() &&
               as_promise(t.unsafeGetTensorImpl())->cell()->input < 0;
    });
}
std::span<const InputSource> Recorder::inputs() const { return state_->inputs; }
std::span<const LoggedCall> Recorder::log() const { return state_->log; }
at::Tensor Recorder::promise_of(const at::Tensor& tensor) {
    const std::int32_t input = state_->promise(tensor).cell()->input;
    return is_promise(tensor) ? tensor : state_->inputs[static_cast<std::size_t>(input)].promise;
}
at::Tensor Recorder::data_of(const at::Tensor& tensor) {
    static const c10::OperatorHandle op =
        c10::Dispatcher::singleton().findSchemaOrThrow("aten::data", "");
    at::Tensor data = promise_of(tensor).variable_data();
    as_promise(data.unsafeGetTensorImpl())->set_apart();
    LoggedCall& copy = state_->log.back();
    check(copy.results.size() == 1 && copy.results[0].toTensor().is_same(data),
          "a copy that is not in the log");
    copy.op = op;
    return data;
}
void Recorder::assume(const at::Tensor& condition) { state_->assume(condition); }
bool Recorder::assumes() const { return state_->assumes; }
bool Recorder::is_input(const at::Tensor& promise) {
    const Promise* p = as_promise(promise.unsafeGetTensorImpl());
    return p != nullptr && p->cell()->input >= 0;
}
void Recorder::note_function(std::size_t first, std::shared_ptr<const CustomFunction> function) {
    check(first < state_->log.size(), "a function without a call");
    state_->log[first].function = std::move(function);
    state_->log[first].calls = state_->log.size() - first;
}
void Recorder::give(std::size_t input, bool frozen) {
    state_->inputs[input].captured = at::Tensor();
    state_->graph.mutable_inputs()[input].frozen = frozen;
}
bool Recorder::may_write(const at::Tensor& tensor) {
    return !state_->promise(tensor).cell()->shares_memory;
}
bool Recorder::owns(const at::Tensor& tensor) const {
    if (!tensor.defined()) return false;
    Promise* p = as_promise(tensor.unsafeGetTensorImpl());
    return p != nullptr && p->cell()->owner == state_.get();
}
bool is_promise(const at::Tensor& tensor) {
    return tensor.defined() && as_promise(tensor.unsafeGetTensorImpl()) != nullptr;
}

}  // namespace ingot::trace
