// Operators, comparisons and item stores.
#include "capture/interpreter/observe.h"

namespace ingot::capture {

namespace {

PyObject* power(PyObject* left, PyObject* right) { return PyNumber_Power(left, right, Py_None); }
PyObject* power_in_place(PyObject* left, PyObject* right) {
    return PyNumber_InPlacePower(left, right, Py_None);
}

struct BinaryOperators {
    binaryfunc functions[NB_INPLACE_XOR + 1] = {};

    constexpr BinaryOperators() {
        functions[NB_ADD] = PyNumber_Add;
        functions[NB_AND] = PyNumber_And;
        functions[NB_FLOOR_DIVIDE] = PyNumber_FloorDivide;
        functions[NB_LSHIFT] = PyNumber_Lshift;
        functions[NB_MATRIX_MULTIPLY] = PyNumber_MatrixMultiply;
        functions[NB_MULTIPLY] = PyNumber_Multiply;
        functions[NB_REMAINDER] = PyNumber_Remainder;
        functions[NB_OR] = PyNumber_Or;
        functions[NB_POWER] = power;
        functions[NB_RSHIFT] = PyNumber_Rshift;
        functions[NB_SUBTRACT] = PyNumber_Subtract;
        functions[NB_TRUE_DIVIDE] = PyNumber_TrueDivide;
        functions[NB_XOR] = PyNumber_Xor;
        functions[NB_INPLACE_ADD] = PyNumber_InPlaceAdd;
        functions[NB_INPLACE_AND] = PyNumber_InPlaceAnd;
        functions[NB_INPLACE_FLOOR_DIVIDE] = PyNumber_InPlaceFloorDivide;
        functions[NB_INPLACE_LSHIFT] = PyNumber_InPlaceLshift;
        functions[NB_INPLACE_MATRIX_MULTIPLY] = PyNumber_InPlaceMatrixMultiply;
        functions[NB_INPLACE_MULTIPLY] = PyNumber_InPlaceMultiply;
        functions[NB_INPLACE_REMAINDER] = PyNumber_InPlaceRemainder;
        functions[NB_INPLACE_OR] = PyNumber_InPlaceOr;
        functions[NB_INPLACE_POWER] = power_in_place;
        functions[NB_INPLACE_RSHIFT] = PyNumber_InPlaceRshift;
        functions[NB_INPLACE_SUBTRACT] = PyNumber_InPlaceSubtract;
        functions[NB_INPLACE_TRUE_DIVIDE] = PyNumber_InPlaceTrueDivide;
        functions[NB_INPLACE_XOR] = PyNumber_InPlaceXor;
    }
};
constexpr BinaryOperators kOperators;

}  // namespace

/// `text = text + more` and `text += more` where the local is the only other owner: the string
/// grows in place, so that loops of it stay linear as they are in CPython. True when it was done.
bool Evaluator::append_in_place(PyObject* left, PyObject* right, Step* step) {
    _Py_CODEUNIT following = *next_;
    if (_PyOpcode_Deopt[_Py_OPCODE(following)] != STORE_FAST || observer_ != nullptr) return false;
    PyObject*& target = local(_Py_OPARG(following));
    if (target != left) return false;
    Py_DECREF(left);  // the stack's reference; the local keeps it alive
    sp_ -= 2;
    PyUnicode_Append(&target, right);
    Py_DECREF(right);
    ++next_;
    *step = target != nullptr ? Step::next : Step::error;
    return true;
}

Step Evaluator::binary_op(int which) {
    PyObject* left = top(2);
    PyObject* right = top();
    if ((which == NB_ADD || which == NB_INPLACE_ADD) && PyUnicode_CheckExact(left) &&
        PyUnicode_CheckExact(right)) {
        Step step;
        if (append_in_place(left, right, &step)) return step;
    }
    PyObject* result = nullptr;
    if (!perform({Operation::binary, which, {sp_ - 2, 2}}, &result,
                 [=] { return kOperators.functions[which](left, right); }))
        return failed();
    replace(2, result);
    return Step::next;
}

Step Evaluator::compare_op(int argument) {
    int which = version::comparison(argument);
    PyObject* result = nullptr;
    if (!perform({Operation::compare, which, {sp_ - 2, 2}}, &result,
                 [=, this] { return PyObject_RichCompare(top(2), top(), which); }))
        return failed();
    replace(2, result);
    return Step::next;
}

Step Evaluator::contains_op(int negated) {
    PyObject* needle = top(2);
    PyObject* container = top();
    PyObject* result = nullptr;
    if (!perform({Operation::contains, negated, {sp_ - 2, 2}}, &result, [=]() -> PyObject* {
            int found = PySequence_Contains(container, needle);
            if (found < 0) return nullptr;
            return Py_NewRef((found != 0) != (negated != 0) ? Py_True : Py_False);
        }))
        return failed();
    replace(2, result);
    return Step::next;
}

Step Evaluator::unary(UnaryOperator which, PyObject* (*function)(PyObject*)) {
    PyObject* operand = top();
    PyObject* result = nullptr;
    if (!perform({Operation::unary, static_cast<int>(which), {&top(), 1}}, &result,
                 [=] { return function(operand); }))
        return failed();
    replace(1, result);
    return Step::next;
}

Step Evaluator::unary_positive(int) { return unary(UnaryOperator::positive, PyNumber_Positive); }
Step Evaluator::unary_negative(int) { return unary(UnaryOperator::negative, PyNumber_Negative); }
Step Evaluator::unary_invert(int) { return unary(UnaryOperator::invert, PyNumber_Invert); }
Step Evaluator::unary_not(int) {
    return unary(UnaryOperator::logical_not, [](PyObject* value) -> PyObject* {
        int truth = PyObject_IsTrue(value);
        return truth < 0 ? nullptr : Py_NewRef(truth != 0 ? Py_False : Py_True);
    });
}

Step Evaluator::store_subscr(int) {
    PyObject* key = top();
    PyObject* container = top(2);
    PyObject* value = top(3);
    PyObject* operands[] = {container, key, value};
    if (!perform_effect({Operation::store_item, 0, operands},
                        [=] { return PyObject_SetItem(container, key, value) == 0; }))
        return failed();
    sp_ -= 3;
    Py_DECREF(value);
    Py_DECREF(container);
    Py_DECREF(key);
    return Step::next;
}

Step Evaluator::delete_subscr(int) {
    if (!perform_effect({Operation::delete_item, 0, {sp_ - 2, 2}},
                        [this] { return PyObject_DelItem(top(2), top()) == 0; }))
        return failed();
    sp_ -= 2;
    PyObject* key = sp_[1];
    Py_DECREF(sp_[0]);
    Py_DECREF(key);
    return Step::next;
}

Step Evaluator::get_len(int) {
    PyObject* result = nullptr;
    bool done = perform({Operation::length, 0, {&top(), 1}}, &result, [this]() -> PyObject* {
        Py_ssize_t length = PyObject_Length(top());
        return length < 0 ? nullptr : PyLong_FromSsize_t(length);
    });
    return push_result(done, result);
}

}  // namespace ingot::capture
