// Jumps, iteration, and what CPython does between instructions: signals, other threads' turns.
#include "capture/interpreter/errors.h"
#include "capture/interpreter/hot.h"

namespace ingot::capture {

/// Someone wants the thread's attention: signal handlers, pending calls, another thread that waits
/// for its turn, an exception from another thread.
Step Evaluator::handle_breaker() {
    // As in CPython, an error raised here is raised just before the instruction that comes next.
    auto raise_before_next = [this] {
        current_ = next_ - 1;
        return Step::error;
    };
    if (!version::collect_if_scheduled() || Py_MakePendingCalls() != 0) return raise_before_next();
    if (_Py_atomic_load_relaxed(&version::gil_drop_request(thread_)) != 0)
        PyEval_RestoreThread(PyEval_SaveThread());
    if (thread_->async_exc != nullptr) {
        PyObject* exception = thread_->async_exc;
        thread_->async_exc = nullptr;
        version::clear_async_signal(thread_);
        PyErr_SetNone(exception);
        Py_DECREF(exception);
        return raise_before_next();
    }
    return Step::next;
}

Step Evaluator::jump_backward_no_interrupt(int offset) {
    next_ -= offset;
    return Step::next;
}

Step Evaluator::pop_jump_forward_if_none(int offset) { return jump_if_none(true, offset, false); }
Step Evaluator::pop_jump_forward_if_not_none(int offset) {
    return jump_if_none(false, offset, false);
}
Step Evaluator::pop_jump_backward_if_none(int offset) { return jump_if_none(true, offset, true); }
Step Evaluator::pop_jump_backward_if_not_none(int offset) {
    return jump_if_none(false, offset, true);
}

Step Evaluator::jump_if_or_pop(bool jump_when, int offset) {
    int truth = truth_of(top());
    if (truth < 0) return failed();
    if ((truth != 0) == jump_when)
        next_ += offset;
    else
        drop(1);
    return Step::next;
}

Step Evaluator::jump_if_false_or_pop(int offset) { return jump_if_or_pop(false, offset); }
Step Evaluator::jump_if_true_or_pop(int offset) { return jump_if_or_pop(true, offset); }

Step Evaluator::get_iter(int) {
    PyObject* iterable = top();
    PyObject* iterator;
    if (!perform({Operation::iterate, 0, {&top(), 1}}, &iterator,
                 [=] { return PyObject_GetIter(iterable); }))
        return failed();
    replace(1, iterator);
    return Step::next;
}

Step Evaluator::print_expr(int) {
    PyObject* hook = PySys_GetObject("displayhook");
    if (hook == nullptr) {
        PyErr_SetString(PyExc_RuntimeError, "lost sys.displayhook");
        return Step::error;
    }
    Py_INCREF(hook);
    PyObject* operands[] = {hook, top()};
    PyObject* result = nullptr;
    bool done = perform({Operation::call, 1, operands}, &result,
                        [&] { return PyObject_CallOneArg(hook, operands[1]); });
    Py_DECREF(hook);
    if (!done) return failed();
    Py_XDECREF(result);
    drop(1);
    return Step::next;
}

/// CPython executes the instruction; it is one that leaves the frame.
Step Evaluator::finish_by_cpython(int) { return Step::finish; }

}  // namespace ingot::capture
