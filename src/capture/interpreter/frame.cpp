// Frames that run, shown; the reports to the observer that are not on the fast path.
#include "capture/interpreter/frame.h"

#include <utility>

#include "capture/interpreter/evaluator.h"

namespace ingot::capture {

PyCodeObject* Frame::code() const { return evaluator_->frame()->f_code; }
PyFunctionObject* Frame::function() const { return version::function_of(evaluator_->frame()); }
PyObject* Frame::globals() const { return evaluator_->frame()->f_globals; }
PyObject* Frame::builtins() const { return evaluator_->frame()->f_builtins; }
PyObject* Frame::mapping() const { return evaluator_->frame()->f_locals; }
int Frame::offset() const { return evaluator_->start_offset(); }
int Frame::instruction() const { return evaluator_->instruction_offset(); }
int Frame::line() const {
    return PyCode_Addr2Line(code(), instruction() * static_cast<int>(sizeof(_Py_CODEUNIT)));
}
std::span<PyObject* const> Frame::slots() const {
    return {evaluator_->frame()->localsplus, static_cast<std::size_t>(code()->co_nlocalsplus)};
}
std::span<PyObject* const> Frame::stack() const { return evaluator_->stack(); }
bool Frame::is_generator() const {
    return (code()->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)) != 0;
}
PyObject* Frame::generator() const {
    _PyInterpreterFrame* frame = evaluator_->frame();
    if (frame->owner != FRAME_OWNED_BY_GENERATOR) return nullptr;
    return reinterpret_cast<PyObject*>(_PyFrame_GetGenerator(frame));
}
bool Frame::is_direct() const { return evaluator_->is_direct(); }
std::optional<Frame> Frame::caller() const {
    Evaluator* outer = evaluator_->outer();
    return outer != nullptr ? std::optional(Frame(outer)) : std::nullopt;
}

const char* operation_name(Operation operation) {
    static constexpr const char* kNames[] = {
        "read_local",  "read_cell",   "read_global",     "read_name",     "read_attribute",
        "read_item",   "store_cell",  "store_global",    "store_name",    "store_attribute",
        "store_item",  "delete_cell", "delete_global",   "delete_name",   "delete_attribute",
        "delete_item", "call",        "call_expanded",   "unary",         "binary",
        "compare",     "identical",   "contains",        "truth",         "is_none",
        "iterate",     "next",        "unpack",          "extend_list",   "extend_set",
        "extend_dict", "add_item",    "format",          "enter_context", "exit_context",
        "match_class", "match_keys",  "match_kind",      "length",        "import_name",
        "import_from", "import_star", "match_exception", "yield_value",   "send",
        "await",       "hash",
    };
    static_assert(std::size(kNames) == static_cast<std::size_t>(Operation::hash) + 1);
    return kNames[static_cast<std::size_t>(operation)];
}

bool Evaluator::perform_observed(const Event& event, PyObject** result, PyObject* (*work)(void*),
                                 void* context) {
    *result = nullptr;
    Verdict verdict = Verdict::run;
    if (!session_->stopped_) {
        Quiet quiet(session_);
        verdict = observer_->before(Frame(this), event, result);
    }
    switch (verdict) {
        case Verdict::run:
            *result = work(context);
            break;
        case Verdict::handled:
            break;
        case Verdict::hand_back:
            session_->stop();
            hand_back_ = true;
            return false;
        case Verdict::raise:
            return false;
    }
    if (version::error_is_set(thread_)) {
        Py_CLEAR(*result);
        if (!session_->stopped_) {
            Quiet quiet(session_);
            observer_->raised(Frame(this), event);
        }
        return false;
    }
    if (report(event, *result)) return true;
    Py_CLEAR(*result);
    return false;
}

bool Evaluator::report(const Event& event, PyObject* result) {
    if (session_->stopped_) return true;
    Quiet quiet(session_);
    return observer_->after(Frame(this), event, result);
}

}  // namespace ingot::capture
