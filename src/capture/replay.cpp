// See replay.h.
#include "capture/replay.h"

#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/python_variable.h>

#include "bindings/errors.h"
#include "bindings/lock.h"
#include "capture/dropped_gradients.h"
#include "capture/news.h"
#include "capture/perform.h"
#include "capture/resumption.h"
#include "trace/tensors.h"

namespace ingot::capture {
namespace {

using bindings::WithoutLock;
using Inputs = c10::SmallVector<c10::TensorImpl*, 32>;

/// `numbers` holds the tensors that are made for floats.
void gather(const Segment& segment, const Values& values, Inputs& inputs,
            c10::SmallVector<at::Tensor, 4>& numbers) {
    inputs.reserve(segment.inputs.size());
    for (const Segment::Input& in : segment.inputs) {
        if (in.number) {
            const double value = values.floats[static_cast<std::size_t>(in.index)];
            numbers.push_back(in.on_gpu ? in.on_gpu->get(value) : trace::number_tensor(value));
            inputs.push_back(numbers.back().unsafeGetTensorImpl());
            continue;
        }
        PyObject* o = in.pinned
                          ? segment.guards.tensors[static_cast<std::size_t>(in.index)].tensor.get()
                          : values[static_cast<std::size_t>(in.index)];
        inputs.push_back(THPVariable_Unpack(o).unsafeGetTensorImpl());
    }
}

/// Runs the segment's program. NoMatch: it cannot serve these inputs. Eager: an operator of it
/// raises, and nothing has been changed: eager raises where the program may handle it.
ReplayStatus compute(const Segment& segment, const Values& values,
                     std::vector<at::Tensor>& outputs) {
    Inputs inputs;
    c10::SmallVector<at::Tensor, 4> made;
    gather(segment, values, inputs, made);
    SymbolValues numbers;
    if (const SizeGuards* sizes = segment.guards.find_sizes()) {
        if (segment.program->takes_all_sizes())
            numbers = values.symbols;
        else
            sizes->numbers(values.symbols, numbers);
    }
    trace::CallStatus status = trace::CallStatus::Done;
    if (segment.program->is_short()) {
        status = segment.program->call(inputs, outputs, numbers);
    } else {
        // Other threads may replace parameters meanwhile.
        c10::SmallVector<at::Tensor, 32> held;
        for (c10::TensorImpl* impl : inputs) held.push_back(trace::borrow(impl));
        const std::shared_ptr<SegmentProgram> program = segment.program;
        WithoutLock unlocked;
        status = program->call(inputs, outputs, numbers);
        held.clear();
    }
    if (status == trace::CallStatus::OtherInputs) return ReplayStatus::NoMatch;
    if (status == trace::CallStatus::KernelFailure)
        if (const auto failure = segment.program->take_failure()) {
            bindings::raise_if_final(*failure);
            if (failure->kind != trace::Failure::Kind::Raised)
                ++state().reasons["a program failed while it ran: " + failure->what];
        }
    return status == trace::CallStatus::Done ? ReplayStatus::Done : ReplayStatus::Eager;
}

/// The segment that serves these slots, run; its objects in `registers`, or, if all it does is to
/// give one tensor, that in `single`.
struct Served {
    std::shared_ptr<Segment> segment;
    std::vector<Ref> registers;
    PyObject* single = nullptr;
    bool failed = false;  // the Python error is set
};

ReplayStatus serve(const ReplayContext& context, const SegmentList& list,
                   std::span<PyObject* const> slots, Served& served) {
    for (std::size_t n = 0; n < list.size(); ++n) {
        Values values;
        Segment& s = *list[n];
        const bool last = n + 1 == list.size();
        served.segment = list[n];  // held: guards may run Python
        if (!s.guards.check(slots, values, last ? context.failure : nullptr)) continue;
        if (s.end == Segment::End::Eager) {
            if (context.eager != nullptr) *context.eager = served.segment;
            return ReplayStatus::Eager;
        }
        std::vector<at::Tensor> outputs;
        if (s.program != nullptr) {
            DroppedGradients dropped(s.dropped, values, s.guards);
            const ReplayStatus status = compute(s, values, outputs);
            if (status == ReplayStatus::Done) dropped.program_has_run();
            if (status == ReplayStatus::Eager) return status;
            if (status == ReplayStatus::NoMatch) {
                if (last && context.failure != nullptr)
                    *context.failure = "the inputs' memory or their need of gradients is another";
                continue;
            }
        }
        const std::vector<Instruction>& code = s.recipes.instructions;
        if (s.end == Segment::End::Return && code.size() == 1 && code[0].make == Make::Output &&
            s.after == s.guards.modes) {
            served.single =
                THPVariable_Wrap(std::move(outputs[static_cast<std::size_t>(code[0].index)]));
            served.failed = served.single == nullptr;
            return ReplayStatus::Done;
        }
        std::vector<Ref> tensors;
        c10::SmallVector<PyObject*, 8> raw;
        for (at::Tensor& t : outputs) {
            tensors.push_back(Ref::steal(THPVariable_Wrap(std::move(t))));
            raw.push_back(tensors.back().get());
        }
        served.failed = !carry_out(s.recipes, values, s.guards, raw, served.registers);
        if (!(s.after == s.guards.modes)) s.after.establish(s.guards.modes);
        return ReplayStatus::Done;
    }
    return ReplayStatus::NoMatch;
}

/// The frames behind a break are built for the error to leave them; both objects are taken over.
PyObject* end_behind_break(const BreakPoint& at, std::span<PyObject* const> slots,
                           PyObject* outcome, PyObject* error) {
    Py_XDECREF(outcome);
    const Ref held = Ref::borrow(error);
    Session session(nullptr);
    session.abort_with(error);
    raise_error(error);
    const Ref result = Ref::steal(resume(at, slots, nullptr));
    return result ? raise_error(Py_NewRef(held.get())) : nullptr;
}

/// Goes on behind a break, recorded as a new segment of `list`; takes over `result`.
PyObject* resume_recording(const ReplayContext& context, const BreakPoint& at,
                           const std::shared_ptr<SegmentList>& list,
                           std::span<PyObject* const> slots, PyObject* result) {
    Recording recording(context.recording, list);
    std::vector<PyObject*> actual;  // with integers that are symbolic in the place of others
    for (std::size_t i = 0; i < slots.size(); ++i)
        actual.push_back(recording.add_slot(static_cast<Py_ssize_t>(i), slots[i],
                                            "slot " + std::to_string(i), true));
    const bool stays = recording.add_result(static_cast<Py_ssize_t>(slots.size()), result);
    if (at.frames.back().resume == Resume::execute) recording.answer_first(at.operation, result);
    const Ref outcome = stays ? Ref::borrow(result) : Ref();
    if (stays)
        recording.begin_again_by([&] { return resume(at, slots, Py_NewRef(outcome.get())); });
    PyObject* returned = nullptr;
    {
        Session session(&recording);
        if (recording.start())
            returned = resume(at, actual, result);
        else
            returned = end_behind_break(at, actual, std::exchange(result, nullptr),
                                        recording.take_error());
    }
    return recording.conclude(returned);
}

/// The error of a call that is not to go on without a recording behind a break; or nullptr.
PyObject* error_behind_break(const ReplayContext& context, ReplayStatus status,
                             const Segment* eager) {
    if (status == ReplayStatus::Eager && eager != nullptr && eager->refused)
        return unsupported(context.recording, eager->reason, eager->places);
    if (status == ReplayStatus::NoMatch && context.stance == Stance::FailOnRecompile)
        return recompile_error(context.recording, *context.failure);
    return nullptr;
}

}  // namespace

ReplayStatus replay(const ReplayContext& context, const SegmentList& first,
                    std::span<PyObject* const> first_slots, PyObject** result) {
    Served served;
    ReplayStatus status = serve(context, first, first_slots, served);
    if (status != ReplayStatus::Done) return status;
    for (;;) {
        *result = nullptr;
        if (served.failed) return ReplayStatus::Done;
        if (served.single != nullptr) {
            *result = served.single;
            return ReplayStatus::Done;
        }
        const std::shared_ptr<Segment> segment = served.segment;
        std::vector<Ref> slots;
        for (std::int32_t root : segment->recipes.roots)
            slots.push_back(served.registers[static_cast<std::size_t>(root)]);
        served.registers.clear();
        if (segment->end == Segment::End::Return) {
            *result = slots[0].release();
            return ReplayStatus::Done;
        }
        const BreakPoint& at = segment->at;
        c10::SmallVector<PyObject*, 32> raw;
        for (const Ref& r : slots) raw.push_back(r.get());
        if (segment->end == Segment::End::Leave) {
            *result = resume_before(at, raw);
            return ReplayStatus::Done;
        }
        const std::size_t frames = raw.size() - at.operands;
        const Event event{at.operation, at.detail,
                          std::span<PyObject* const>(raw.data() + frames, at.operands),
                          at.name.get(), at.keyword_names.get()};
        PyObject* outcome = perform(event);
        const std::span<PyObject* const> frame_slots(raw.data(), frames);
        if (outcome == nullptr) {
            *result = resume(at, frame_slots, nullptr);
            return ReplayStatus::Done;
        }
        raw[frames] = outcome;  // operands are never needed again, and there is at least one
        Served next;
        const std::span<PyObject* const> next_slots(raw.data(), frames + 1);
        const auto children = segment->children;
        std::shared_ptr<const Segment> eager;
        std::string failure;
        const ReplayContext behind{context.recording, context.stance, &failure, &eager};
        status = serve(behind, *children, next_slots, next);
        const bool compiles =
            context.stance == Stance::Default || context.stance == Stance::EagerThenCompile;
        if (status == ReplayStatus::NoMatch && compiles && !frames_are_traced() &&
            state().torch.allows_recording()) {
            if (!is_full(*children, context.recording.limit, Modes::now())) {
                if (!children->empty())
                    tell(context.recording, "recompile", failure, segment->places);
                *result = resume_recording(context, at, children, frame_slots, outcome);
                return ReplayStatus::Done;
            }
            if (context.recording.tree->full.insert(children.get()).second)
                tell_limit(context.recording, failure);
        }
        if (status != ReplayStatus::Done) {
            if (PyObject* error = error_behind_break(behind, status, eager.get())) {
                *result = end_behind_break(at, frame_slots, outcome, error);
            } else {
                *result = resume(at, frame_slots, outcome);
            }
            return ReplayStatus::Done;
        }
        Py_DECREF(outcome);
        served = std::move(next);
    }
}

}  // namespace ingot::capture
