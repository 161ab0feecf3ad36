// Sessions and the PEP 523 hook. CPython's hook has no context argument, so the sessions of a
// thread hang on a thread-local pointer: the one place where there is one.
#include <utility>

#include "capture/interpreter/evaluator.h"
#include "capture/interpreter/hook.h"

namespace ingot::capture {

namespace {

thread_local Session* current_session = nullptr;
thread_local FrameTaker* waiting_taker = nullptr;

// Guarded by the GIL.
int hook_uses = 0;
_PyFrameEvalFunction previous_hook = nullptr;

}  // namespace

PyObject* FrameHook::run(PyThreadState* thread, _PyInterpreterFrame* frame, int thrown) {
    if (waiting_taker != nullptr && waiting_taker->takes(frame))
        return std::exchange(waiting_taker, nullptr)->run(thread, frame);
    Session* session = current_session;
    // The collector runs callbacks and finalizers anywhere, so they are no part of the program.
    // An aborted program only cleans up: generators go on, whose handlers must not catch the error.
    if (session == nullptr || session->quiet_ > 0 || session->stopped_ ||
        (session->aborting_with_ != nullptr && !version::is_of_generator(frame)) ||
        version::is_tracing(thread) || thread->interp->gc.collecting != 0)
        return previous_hook(thread, frame, thrown);
    return evaluate(thread, frame, thrown != 0, session);
}

FrameHook::FrameHook() {
    if (hook_uses++ > 0) return;
    PyInterpreterState* interpreter = PyInterpreterState_Get();
    previous_hook = _PyInterpreterState_GetEvalFrameFunc(interpreter);
    _PyInterpreterState_SetEvalFrameFunc(interpreter, FrameHook::run);
}

FrameHook::~FrameHook() {
    if (--hook_uses > 0) return;
    PyInterpreterState* interpreter = PyInterpreterState_Get();
    // Someone who has put a hook over this one keeps it.
    if (_PyInterpreterState_GetEvalFrameFunc(interpreter) == FrameHook::run)
        _PyInterpreterState_SetEvalFrameFunc(interpreter, previous_hook);
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
