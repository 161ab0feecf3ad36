// See perform.h.
#include "capture/perform.h"

#include <torch/csrc/autograd/python_variable.h>

#include <array>
#include <vector>

#include "bindings/lock.h"
#include "capture/callables.h"
#include "capture/ref.h"
#include "capture/state.h"

namespace ingot::capture {
namespace {

using BinaryFunction = PyObject* (*)(PyObject*, PyObject*);

PyObject* power(PyObject* a, PyObject* b) { return PyNumber_Power(a, b, Py_None); }
PyObject* in_place_power(PyObject* a, PyObject* b) { return PyNumber_InPlacePower(a, b, Py_None); }

/// By NB_ number.
constexpr std::array<BinaryFunction, 26> kBinary = {PyNumber_Add,
                                                    PyNumber_And,
                                                    PyNumber_FloorDivide,
                                                    PyNumber_Lshift,
                                                    PyNumber_MatrixMultiply,
                                                    PyNumber_Multiply,
                                                    PyNumber_Remainder,
                                                    PyNumber_Or,
                                                    power,
                                                    PyNumber_Rshift,
                                                    PyNumber_Subtract,
                                                    PyNumber_TrueDivide,
                                                    PyNumber_Xor,
                                                    PyNumber_InPlaceAdd,
                                                    PyNumber_InPlaceAnd,
                                                    PyNumber_InPlaceFloorDivide,
                                                    PyNumber_InPlaceLshift,
                                                    PyNumber_InPlaceMatrixMultiply,
                                                    PyNumber_InPlaceMultiply,
                                                    PyNumber_InPlaceRemainder,
                                                    PyNumber_InPlaceOr,
                                                    in_place_power,
                                                    PyNumber_InPlaceRshift,
                                                    PyNumber_InPlaceSubtract,
                                                    PyNumber_InPlaceTrueDivide,
                                                    PyNumber_InPlaceXor};

PyObject* truth(int value, bool inverted) {
    if (value < 0) return nullptr;
    return PyBool_FromLong((value != 0) != inverted);
}

PyObject* nothing(int status) { return status == 0 ? Py_NewRef(Py_None) : nullptr; }

PyObject* format(const Event& e) {
    Ref value = Ref::borrow(e.operands[0]);
    switch (e.detail & 3) {
        case 1:
            value = Ref::steal(PyObject_Str(value.get()));
            break;
        case 2:
            value = Ref::steal(PyObject_Repr(value.get()));
            break;
        case 3:
            value = Ref::steal(PyObject_ASCII(value.get()));
            break;
        default:
            break;
    }
    PyObject* specification = e.operands.size() > 1 ? e.operands[1] : nullptr;
    return value ? PyObject_Format(value.get(), specification) : nullptr;
}

PyObject* call(const Event& e) {
    const auto count = static_cast<std::size_t>(e.detail);
    // At a break too the function gives what it gives while recording: its results are numbers
    // here or tensors there otherwise, and a program that collects them has some of both.
    if (count == 1 && PyFunction_Check(e.operands[0]) && THPVariable_Check(e.operands[1]) &&
        state().mark_of(e.operands[0]) == Mark::Wide)
        return PyObject_CallMethod(e.operands[1], "double", nullptr);
    return PyObject_Vectorcall(e.operands[0], e.operands.data() + 1, count, e.keyword_names);
}

PyObject* call_expanded(const Event& e) {
    PyObject* names = e.operands.size() > 2 ? e.operands[2] : nullptr;
    return PyObject_Call(e.operands[0], e.operands[1], names);
}

PyObject* unary(const Event& e) {
    switch (static_cast<UnaryOperator>(e.detail)) {
        case UnaryOperator::positive:
            return PyNumber_Positive(e.operands[0]);
        case UnaryOperator::negative:
            return PyNumber_Negative(e.operands[0]);
        case UnaryOperator::invert:
            return PyNumber_Invert(e.operands[0]);
        case UnaryOperator::logical_not:
            return truth(PyObject_IsTrue(e.operands[0]), true);
    }
    return nullptr;
}

}  // namespace

PyObject* perform_unobserved(const Event& event) {
    const Quiet quiet;
    return perform(event);
}

bool can_perform(const Event& e) {
    switch (e.operation) {
        case Operation::read_attribute:
        case Operation::read_item:
        case Operation::store_attribute:
        case Operation::store_item:
        case Operation::delete_attribute:
        case Operation::delete_item:
        case Operation::call:
        case Operation::call_expanded:
        case Operation::unary:
        case Operation::binary:
        case Operation::compare:
        case Operation::contains:
        case Operation::truth:
        case Operation::iterate:
        case Operation::format:
            return true;
        default:
            return false;
    }
}

PyObject* perform(const Event& e) {
    const auto& o = e.operands;
    switch (e.operation) {
        case Operation::read_attribute:
            return PyObject_GetAttr(o[0], e.name);
        case Operation::read_item:
            return PyObject_GetItem(o[0], o[1]);
        case Operation::store_attribute:
            return nothing(PyObject_SetAttr(o[0], e.name, o[1]));
        case Operation::store_item:
            return nothing(PyObject_SetItem(o[0], o[1], o[2]));
        case Operation::delete_attribute:
            return nothing(PyObject_SetAttr(o[0], e.name, nullptr));
        case Operation::delete_item:
            return nothing(PyObject_DelItem(o[0], o[1]));
        case Operation::call:
            return call(e);
        case Operation::call_expanded:
            return call_expanded(e);
        case Operation::unary:
            return unary(e);
        case Operation::binary:
            return kBinary[static_cast<std::size_t>(e.detail)](o[0], o[1]);
        case Operation::compare:
            return PyObject_RichCompare(o[0], o[1], e.detail);
        case Operation::contains:
            return truth(PySequence_Contains(o[1], o[0]), e.detail == 1);
        case Operation::truth:
            return truth(PyObject_IsTrue(o[0]), false);
        case Operation::iterate:
            return PyObject_GetIter(o[0]);
        case Operation::format:
            return format(e);
        default:
            PyErr_SetString(PyExc_SystemError, "an operation that cannot be carried out");
            return nullptr;
    }
}

Verdict finish_result(const Event& e, PyObject** result) {
    switch (e.operation) {
        case Operation::store_attribute:
        case Operation::store_item:
        case Operation::delete_attribute:
        case Operation::delete_item:
            Py_CLEAR(*result);
            break;
        default:
            break;
    }
    return Verdict::handled;
}

bool is_operator_event(const Event& e) {
    if (e.operation != Operation::call && e.operation != Operation::call_expanded) return true;
    PyObject* callable = e.operands[0];
    if (PyMethod_Check(callable)) callable = PyMethod_GET_FUNCTION(callable);
    if (PyFunction_Check(callable) || PyType_Check(callable)) return false;
    const CallClass c = classify(callable);
    return c.kind == CallKind::Torch && !c.name.ends_with(".apply");
}

std::string callable_name(PyObject* callable) {
    Ref name = Ref::steal(PyObject_GetAttrString(callable, "__qualname__"));
    const char* text = name && PyUnicode_Check(name.get()) ? PyUnicode_AsUTF8(name.get()) : nullptr;
    if (text != nullptr) return text;
    PyErr_Clear();
    return Py_TYPE(callable)->tp_name;
}

std::string error_text() {
    bindings::Pending error;
    PyObject* value = error.exception();
    std::string text = error.type() == nullptr ? "" : error.type()->tp_name;
    if (Ref s = Ref::steal(value == nullptr ? nullptr : PyObject_Str(value))) {
        if (const char* utf8 = PyUnicode_AsUTF8(s.get())) {
            const std::string message = utf8;
            text += ": " + message.substr(0, message.find('\n'));
        }
    }
    PyErr_Clear();
    return text;
}

}  // namespace ingot::capture
