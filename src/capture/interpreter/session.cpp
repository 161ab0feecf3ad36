// Sessions and the PEP 523 hook. CPython's hook has no context argument, so the sessions of a
// thread hang on a thread-local pointer: the one place where there is one.
//
// Others have hooks too, and each takes whatever it finds for the one below it: with TorchDynamo's
// over ours over TorchDynamo's, a frame would go round for ever. So ours passes a frame on to what
// it found only while it is the topmost; else who lies above has seen the frame already, and
// CPython's evaluator has it. A frame that comes back all the same goes there as well.
#include <utility>

#include "capture/interpreter/evaluator.h"
#include "capture/interpreter/hook.h"

namespace ingot::capture {

namespace {

thread_local Session* current_session = nullptr;
thread_local FrameTaker* waiting_taker = nullptr;
thread_local _PyInterpreterFrame* passed_on = nullptr;  // to the hook below, by this thread

// Guarded by the GIL.
int hook_uses = 0;
_PyFrameEvalFunction hook_below = _PyEval_EvalFrameDefault;

}  // namespace

/// Gives a frame that is no session's to the hook below, or to CPython.
PyObject* FrameHook::pass_on(PyThreadState* thread, _PyInterpreterFrame* frame, int thrown) {
    if (_PyInterpreterState_GetEvalFrameFunc(thread->interp) != FrameHook::run ||
        hook_below == _PyEval_EvalFrameDefault || passed_on == frame) {
        if (hook_uses == 0) uninstall(thread->interp);  // who lay above it is gone
        return _PyEval_EvalFrameDefault(thread, frame, thrown);
    }
    _PyInterpreterFrame* const before = std::exchange(passed_on, frame);
    PyObject* result = hook_below(thread, frame, thrown);
    passed_on = before;
    return result;
}

PyObject* FrameHook::run(PyThreadState* thread, _PyInterpreterFrame* frame, int thrown) {
    if (waiting_taker != nullptr && waiting_taker->takes(frame))
        return std::exchange(waiting_taker, nullptr)->run(thread, frame);
    Session* session = current_session;
    // The collector runs callbacks and finalizers anywhere, so they are no part of the program.
    // An aborted program only cleans up: generators go on, whose handlers must not catch the error.
    if (session == nullptr || session->quiet_ > 0 || session->stopped_ ||
        (session->aborting_with_ != nullptr && !version::is_of_generator(frame)) ||
        version::is_tracing(thread) || thread->interp->gc.collecting != 0)
        return pass_on(thread, frame, thrown);
    return evaluate(thread, frame, thrown != 0, session);
}

void FrameHook::uninstall(PyInterpreterState* interpreter) {
    // Someone who has put a hook over this one keeps it; `pass_on` does this when they are gone.
    if (_PyInterpreterState_GetEvalFrameFunc(interpreter) == FrameHook::run)
        _PyInterpreterState_SetEvalFrameFunc(interpreter, hook_below);
}

FrameHook::FrameHook() {
    PyInterpreterState* const interpreter = PyInterpreterState_Get();
    const _PyFrameEvalFunction found = _PyInterpreterState_GetEvalFrameFunc(interpreter);
    if (found != FrameHook::run) {
        hook_below = found;
        _PyInterpreterState_SetEvalFrameFunc(interpreter, FrameHook::run);
    }
    ++hook_uses;
    dynamo_.hold();
    // TorchDynamo's hook lies above now, and was found: it is none to pass frames on to.
    if (_PyInterpreterState_GetEvalFrameFunc(interpreter) == hook_below)
        hook_below = _PyEval_EvalFrameDefault;
}

FrameHook::~FrameHook() {
    dynamo_.release();
    if (--hook_uses == 0) uninstall(PyInterpreterState_Get());
}

void FrameHook::wait_for(FrameTaker* taker) { waiting_taker = taker; }

Session::Session(Observer* observer)
    : hook_(std::make_unique<FrameHook>()), observer_(observer), outer_(current_session) {
    current_session = this;
}

Session::~Session() {
    current_session = outer_;
    Py_XDECREF(aborting_with_);
}

Session* Session::current() noexcept { return current_session; }

std::optional<Frame> Session::innermost() const {
    return innermost_ != nullptr ? std::optional(Frame(innermost_)) : std::nullopt;
}

bool frames_are_traced() noexcept {
    const PyThreadState* thread = PyThreadState_Get();
    return thread->c_tracefunc != nullptr || thread->c_profilefunc != nullptr;
}

Quiet::Quiet(Session* session) : session_(session) {
    if (session_ != nullptr) ++session_->quiet_;
}
Quiet::~Quiet() {
    if (session_ != nullptr) --session_->quiet_;
}

Observed::Observed() : session_(Session::current()) {
    if (session_ != nullptr) quiet_ = std::exchange(session_->quiet_, 0);
}
Observed::~Observed() {
    if (session_ != nullptr) session_->quiet_ = quiet_;
}

}  // namespace ingot::capture
