// The instructions that programs consist of most, to be inlined into the loop.
#pragma once
#include "capture/interpreter/observe.h"

namespace ingot::capture {

inline Step Evaluator::nop(int) { return Step::next; }

inline Step Evaluator::resume(int argument) {
    if (version::must_instrument(thread_, frame_->f_code)) return Step::hand_back;
    return argument < 2 ? check_breaker() : Step::next;
}

inline Step Evaluator::load_fast(int slot) {
    PyObject* value = local(slot);
    if (value == nullptr) [[unlikely]]
        return unbound_local(slot);
    if (observer_ != nullptr) [[unlikely]] {
        if (!report({Operation::read_local, slot, {}, slot_name(slot)}, value)) return failed();
    }
    push(Py_NewRef(value));
    return Step::next;
}

inline Step Evaluator::load_const(int index) {
    push(Py_NewRef(constant(index)));
    return Step::next;
}

inline Step Evaluator::store_fast(int slot) {
    PyObject* old = local(slot);
    local(slot) = pop();
    Py_XDECREF(old);
    return Step::next;
}

inline Step Evaluator::pop_top(int) {
    if (aborts(top())) [[unlikely]]
        return discard_aborting();
    PyObject* value = pop();
    Py_DECREF(value);
    return Step::next;
}

inline Step Evaluator::push_null(int) {
    push(nullptr);
    return Step::next;
}

inline Step Evaluator::copy(int depth) {
    push(Py_XNewRef(top(depth)));
    return Step::next;
}

inline Step Evaluator::swap(int depth) {
    std::swap(top(), top(depth));
    return Step::next;
}

inline Step Evaluator::load_attr(int argument) {
    PyObject* owner = top();
    PyObject* attribute = name(argument);
    PyObject* result = nullptr;
    if (!perform({Operation::read_attribute, 0, {&top(), 1}, attribute}, &result,
                 [&] { return PyObject_GetAttr(owner, attribute); })) [[unlikely]]
        return failed();
    top() = result;
    Py_DECREF(owner);
    return Step::next;
}

inline Step Evaluator::binary_subscr(int) {
    PyObject* result = nullptr;
    if (!perform({Operation::read_item, 0, {sp_ - 2, 2}}, &result,
                 [this] { return PyObject_GetItem(top(2), top()); })) [[unlikely]]
        return failed();
    replace(2, result);
    return Step::next;
}

inline Step Evaluator::is_op(int negated) {
    PyObject* answer = (top(2) == top()) != (negated != 0) ? Py_True : Py_False;
    PyObject* result = nullptr;
    if (!perform({Operation::identical, negated, {sp_ - 2, 2}}, &result,
                 [=] { return Py_NewRef(answer); }))
        return failed();
    replace(2, result);
    return Step::next;
}

/// The truth of a value, reported; below zero: `failed()`.
inline int Evaluator::truth_of(PyObject* value) {
    if (observer_ == nullptr) [[likely]] {
        if (value == Py_True) return 1;
        if (value == Py_False || value == Py_None) return 0;
        return PyObject_IsTrue(value);
    }
    PyObject* result = nullptr;
    if (!perform({Operation::truth, 0, {&value, 1}}, &result, [&]() -> PyObject* {
            int truth = PyObject_IsTrue(value);
            return truth < 0 ? nullptr : Py_NewRef(truth != 0 ? Py_True : Py_False);
        }))
        return -1;
    int truth = result == Py_True;
    Py_DECREF(result);
    return truth;
}

inline Step Evaluator::jump_if(bool jump_when, int offset, bool backward) {
    int truth = truth_of(top());
    if (truth < 0) [[unlikely]]
        return failed();
    PyObject* condition = pop();
    Py_DECREF(condition);
    if ((truth != 0) != jump_when) return Step::next;
    next_ += backward ? -offset : offset;
    return backward ? check_breaker() : Step::next;
}

inline Step Evaluator::pop_jump_forward_if_false(int offset) {
    return jump_if(false, offset, false);
}
inline Step Evaluator::pop_jump_forward_if_true(int offset) { return jump_if(true, offset, false); }
inline Step Evaluator::pop_jump_backward_if_false(int offset) {
    return jump_if(false, offset, true);
}
inline Step Evaluator::pop_jump_backward_if_true(int offset) { return jump_if(true, offset, true); }

inline Step Evaluator::jump_if_none(bool jump_when, int offset, bool backward) {
    PyObject* value = top();
    bool is_none = value == Py_None;
    if (observer_ != nullptr) [[unlikely]] {
        PyObject* result = nullptr;
        if (!perform({Operation::is_none, !jump_when, {&top(), 1}}, &result,
                     [&] { return Py_NewRef(is_none == jump_when ? Py_True : Py_False); }))
            return failed();
        is_none = (result == Py_True) == jump_when;
        Py_DECREF(result);
    }
    --sp_;
    bool jump = is_none == jump_when;
    if (jump) next_ += backward ? -offset : offset;
    Py_DECREF(value);
    return jump && backward ? check_breaker() : Step::next;
}

inline Step Evaluator::jump_forward(int offset) {
    next_ += offset;
    return Step::next;
}

inline Step Evaluator::jump_backward(int offset) {
    next_ -= offset;
    return check_breaker();
}

inline Step Evaluator::for_iter(int offset) {
    PyObject* iterator = top();
    PyObject* item;
    if (observer_ == nullptr) [[likely]]
        item = Py_TYPE(iterator)->tp_iternext(iterator);
    else if (!perform_observed(
                 {Operation::next, 0, {&top(), 1}}, &item,
                 [](void* self) -> PyObject* {
                     auto* iterator = static_cast<PyObject*>(self);
                     PyObject* item = Py_TYPE(iterator)->tp_iternext(iterator);
                     if (item == nullptr && PyErr_ExceptionMatches(PyExc_StopIteration))
                         PyErr_Clear();
                     return item;
                 },
                 iterator))
        return failed();
    if (item != nullptr) [[likely]] {
        push(item);
        return Step::next;
    }
    if (version::error_is_set(thread_)) {
        if (!PyErr_ExceptionMatches(PyExc_StopIteration)) return Step::error;
        PyErr_Clear();
    }
    --sp_;
    Py_DECREF(iterator);
    next_ += offset + version::kForIterSkip;
    return Step::next;
}

inline Step Evaluator::return_value(int) {
    result_ = pop();
    return Step::leave;
}

}  // namespace ingot::capture
