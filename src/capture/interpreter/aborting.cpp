// Ending a program by an exception that it cannot catch: see Session::abort_with.
//
// The frames unwind as CPython unwinds them, so `finally` and `__exit__` run, with four differences
// for this one exception. No `except` matches it. `__exit__` cannot suppress it. What is taken off
// the stack unhandled (a bare `except`, a `finally` that returns) is raised again, and so is what a
// clean-up has replaced by an exception of its own. Where C code between two frames has swallowed
// it, the outer one raises it again at its next instruction. Nothing of this holds for frames that
// CPython executes: the caller of the session looks at what comes out.
//
// Costs a comparison where exceptions are handled or values are dropped, under a session only.
#include "capture/interpreter/evaluator.h"

namespace ingot::capture {

void Session::abort_with(PyObject* error) noexcept {
    if (aborting_with_ != nullptr) return;
    aborting_with_ = Py_NewRef(error);
    for (Evaluator* e = innermost_; e != nullptr; e = e->outer_) e->must_abort_ = true;
}

Step Evaluator::abort() {
    version::restore_exception(Py_NewRef(session_->aborting_with_));
    return Step::error;
}

/// It lies on top of the stack, and the program is about to forget it.
Step Evaluator::discard_aborting() {
    version::restore_exception(pop());
    return Step::unwind;
}

/// Its handling is over: with another exception that is about to be raised, unless that is one by
/// which the program is ended from outside.
void Evaluator::keep_aborting(PyObject* handled) {
    if (_PyOpcode_Deopt[_Py_OPCODE(*next_)] != RERAISE || top() == handled) return;
    if (!PyExceptionInstance_Check(top()) ||
        PyErr_GivenExceptionMatches(top(), PyExc_Exception) == 0)
        return;
    Py_SETREF(top(), Py_NewRef(handled));
}

}  // namespace ingot::capture
