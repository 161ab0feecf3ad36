// Locals, cells, globals, names of class bodies and modules, attributes.
#include "capture/interpreter/errors.h"
#include "capture/interpreter/observe.h"

namespace ingot::capture {

namespace {

/// mapping[key], a new reference; nullptr without an error when there is none.
PyObject* find_in(PyObject* mapping, PyObject* key) {
    if (PyDict_CheckExact(mapping)) return Py_XNewRef(PyDict_GetItemWithError(mapping, key));
    PyObject* value = PyObject_GetItem(mapping, key);
    if (value == nullptr && PyErr_ExceptionMatches(PyExc_KeyError)) PyErr_Clear();
    return value;
}

int store_in(PyObject* mapping, PyObject* key, PyObject* value) {
    return PyDict_CheckExact(mapping) ? PyDict_SetItem(mapping, key, value)
                                      : PyObject_SetItem(mapping, key, value);
}

}  // namespace

Step Evaluator::unbound_local(int slot) {
    raise_unbound_local(slot_name(slot));
    return Step::error;
}

Step Evaluator::unbound_cell(int slot) {
    PyCodeObject* code = frame_->f_code;
    if (slot < code->co_nlocalsplus - code->co_nfreevars)
        raise_unbound_local(slot_name(slot));
    else
        raise_for_name(PyExc_NameError,
                       "cannot access free variable '%s' where it is not associated with a value"
                       " in enclosing scope",
                       slot_name(slot));
    return Step::error;
}

Step Evaluator::load_closure(int slot) {
    if (local(slot) == nullptr) return unbound_local(slot);
    push(Py_NewRef(local(slot)));
    return Step::next;
}

Step Evaluator::delete_fast(int slot) {
    PyObject* old = local(slot);
    if (old == nullptr) return unbound_local(slot);
    local(slot) = nullptr;
    Py_DECREF(old);
    return Step::next;
}

Step Evaluator::make_cell(int slot) {
    PyObject* initial = local(slot);
    PyObject* cell = PyCell_New(initial);
    if (cell == nullptr) return Step::error;
    local(slot) = cell;
    Py_XDECREF(initial);
    return Step::next;
}

Step Evaluator::copy_free_vars(int count) {
    PyCodeObject* code = frame_->f_code;
    PyObject* closure = version::function_of(frame_)->func_closure;
    int first_free = code->co_nlocalsplus - count;
    for (int i = 0; i < count; ++i) local(first_free + i) = Py_NewRef(PyTuple_GET_ITEM(closure, i));
    return Step::next;
}

Step Evaluator::load_deref(int slot) {
    if (observer_ != nullptr) {  // that it is unbound is a thing to be seen, too
        PyObject* result = nullptr;
        bool done =
            perform({Operation::read_cell, slot, {&local(slot), 1}, slot_name(slot)}, &result, [&] {
                PyObject* value = PyCell_GET(local(slot));
                if (value == nullptr) (void)unbound_cell(slot);
                return Py_XNewRef(value);
            });
        return push_result(done, result);
    }
    PyObject* value = PyCell_GET(local(slot));
    if (value == nullptr) return unbound_cell(slot);
    push(Py_NewRef(value));
    return Step::next;
}

Step Evaluator::store_deref(int slot) {
    PyObject* cell = local(slot);
    PyObject* operands[] = {cell, top()};
    if (!perform_effect({Operation::store_cell, slot, operands, slot_name(slot)}, [&] {
            PyObject* old = PyCell_GET(cell);
            PyCell_SET(cell, Py_NewRef(operands[1]));
            Py_XDECREF(old);
            return true;
        }))
        return failed();
    drop(1);
    return Step::next;
}

Step Evaluator::delete_deref(int slot) {
    PyObject* cell = local(slot);
    if (!perform_effect({Operation::delete_cell, slot, {&cell, 1}, slot_name(slot)}, [&] {
            PyObject* old = PyCell_GET(cell);
            if (old == nullptr) {
                (void)unbound_cell(slot);
                return false;
            }
            PyCell_SET(cell, nullptr);
            Py_XDECREF(old);
            return true;
        }))
        return failed();
    return Step::next;
}

/// A free variable of a class body: the mapping first, then the cell.
Step Evaluator::push_class_cell(int slot, PyObject* mapping) {
    PyObject* key = slot_name(slot);
    PyObject* operands[] = {mapping, frame_->f_globals, frame_->f_builtins};
    bool unbound = false;
    PyObject* result = nullptr;
    bool done = perform({Operation::read_name, 0, operands, key}, &result, [&]() -> PyObject* {
        PyObject* value = find_in(mapping, key);
        if (value != nullptr || PyErr_Occurred()) return value;
        value = Py_XNewRef(PyCell_GET(local(slot)));
        if (value == nullptr) {
            unbound = true;
            (void)unbound_cell(slot);
        }
        return value;
    });
    return push_result(done, result);
}

Step Evaluator::load_classderef(int slot) { return push_class_cell(slot, frame_->f_locals); }

/// Globals, then builtins; a new reference.
PyObject* Evaluator::look_up_global(PyObject* key, bool* from_builtins) {
    *from_builtins = false;
    PyObject* globals = frame_->f_globals;
    PyObject* builtins = frame_->f_builtins;
    PyObject* value;
    if (PyDict_CheckExact(globals) && PyDict_CheckExact(builtins)) [[likely]] {
        Py_hash_t hash = reinterpret_cast<PyASCIIObject*>(key)->hash;
        value = _PyDict_GetItem_KnownHash(globals, key, hash);
        if (value == nullptr && !version::error_is_set(thread_)) {
            *from_builtins = true;
            value = _PyDict_GetItem_KnownHash(builtins, key, hash);
        }
        if (value != nullptr) return Py_NewRef(value);
        if (!version::error_is_set(thread_)) raise_name_error(key);
        return nullptr;
    }
    value = PyObject_GetItem(globals, key);
    if (value != nullptr || !PyErr_ExceptionMatches(PyExc_KeyError)) return value;
    PyErr_Clear();
    *from_builtins = true;
    value = PyObject_GetItem(builtins, key);
    if (value == nullptr && PyErr_ExceptionMatches(PyExc_KeyError)) raise_name_error(key);
    return value;
}

Step Evaluator::load_global(int argument) {
    PyObject* key = name(argument >> 1);
    bool from_builtins;
    PyObject* value;
    if (observer_ == nullptr) [[likely]] {
        value = look_up_global(key, &from_builtins);
        if (value == nullptr) return Step::error;
    } else {
        PyObject* operands[] = {frame_->f_globals, frame_->f_builtins};
        Event event{Operation::read_global, 0, operands, key};
        bool done = perform(event, &value, [&] {
            PyObject* found = look_up_global(key, &from_builtins);
            event.detail = from_builtins;
            return found;
        });
        if (!done) return failed();
    }
    if ((argument & 1) != 0) push(nullptr);
    push(value);
    return Step::next;
}

Step Evaluator::store_global(int index) {
    PyObject* key = name(index);
    PyObject* operands[] = {frame_->f_globals, top()};
    if (!perform_effect({Operation::store_global, 0, operands, key},
                        [&] { return PyDict_SetItem(operands[0], key, operands[1]) == 0; }))
        return failed();
    drop(1);
    return Step::next;
}

Step Evaluator::delete_global(int index) {
    PyObject* key = name(index);
    PyObject* globals = frame_->f_globals;
    bool done = perform_effect({Operation::delete_global, 0, {&globals, 1}, key}, [&] {
        if (PyDict_DelItem(globals, key) == 0) return true;
        if (PyErr_ExceptionMatches(PyExc_KeyError)) raise_name_error(key);
        return false;
    });
    return done ? Step::next : failed();
}

/// The mapping of a class body or module, globals, builtins; a new reference.
PyObject* Evaluator::look_up_name(PyObject* key) {
    PyObject* mapping = frame_->f_locals;
    if (mapping == nullptr) {
        PyErr_Format(PyExc_SystemError, "no locals when loading %R", key);
        return nullptr;
    }
    PyObject* value = find_in(mapping, key);
    if (value != nullptr || PyErr_Occurred()) return value;
    value = Py_XNewRef(PyDict_GetItemWithError(frame_->f_globals, key));
    if (value != nullptr || PyErr_Occurred()) return value;
    value = find_in(frame_->f_builtins, key);
    if (value == nullptr && !PyErr_Occurred()) raise_name_error(key);
    return value;
}

Step Evaluator::load_name(int index) {
    PyObject* key = name(index);
    PyObject* operands[] = {frame_->f_locals, frame_->f_globals, frame_->f_builtins};
    PyObject* result = nullptr;
    bool done = perform({Operation::read_name, 0, operands, key}, &result,
                        [&] { return look_up_name(key); });
    return push_result(done, result);
}

Step Evaluator::store_name(int index) {
    PyObject* key = name(index);
    PyObject* mapping = frame_->f_locals;
    if (mapping == nullptr) {
        PyErr_Format(PyExc_SystemError, "no locals found when storing %R", key);
        return Step::error;
    }
    PyObject* operands[] = {mapping, top()};
    if (!perform_effect({Operation::store_name, 0, operands, key},
                        [&] { return store_in(mapping, key, operands[1]) == 0; }))
        return failed();
    drop(1);
    return Step::next;
}

Step Evaluator::delete_name(int index) {
    PyObject* key = name(index);
    PyObject* mapping = frame_->f_locals;
    if (mapping == nullptr) {
        PyErr_Format(PyExc_SystemError, "no locals when deleting %R", key);
        return Step::error;
    }
    bool done = perform_effect({Operation::delete_name, 0, {&mapping, 1}, key}, [&] {
        if (PyObject_DelItem(mapping, key) == 0) return true;
        raise_name_error(key);
        return false;
    });
    return done ? Step::next : failed();
}

Step Evaluator::store_attr(int index) {
    PyObject* key = name(index);
    PyObject* owner = top();
    PyObject* value = top(2);
    PyObject* operands[] = {owner, value};
    if (!perform_effect({Operation::store_attribute, 0, operands, key},
                        [=] { return PyObject_SetAttr(owner, key, value) == 0; }))
        return failed();
    sp_ -= 2;
    Py_DECREF(value);
    Py_DECREF(owner);
    return Step::next;
}

Step Evaluator::delete_attr(int index) {
    PyObject* key = name(index);
    PyObject* owner = top();
    if (!perform_effect({Operation::delete_attribute, 0, {&top(), 1}, key},
                        [=] { return PyObject_SetAttr(owner, key, nullptr) == 0; }))
        return failed();
    drop(1);
    return Step::next;
}

/// Pushes a method without binding it and its object, or nullptr and whatever the attribute is.
Step Evaluator::load_method(int index) {
    PyObject* key = name(index);
    PyObject* owner = top();
    int unbound = 0;
    PyObject* method;
    if (observer_ == nullptr) [[likely]] {
        method = nullptr;
        unbound = _PyObject_GetMethod(owner, key, &method);
        if (method == nullptr) return Step::error;
    } else if (!perform({Operation::read_attribute, 1, {&top(), 1}, key}, &method, [&] {
                   PyObject* found = nullptr;
                   unbound = _PyObject_GetMethod(owner, key, &found);
                   return found;
               })) {
        return failed();
    }
    if (unbound != 0) {
        top() = method;
        push(owner);
    } else {
        top() = nullptr;
        Py_DECREF(owner);
        push(method);
    }
    return Step::next;
}

Step Evaluator::load_build_class(int) {
    PyObject* builtins = frame_->f_builtins;
    PyObject* result = find_in(builtins, names().build_class);
    if (result == nullptr && !PyErr_Occurred())
        PyErr_SetString(PyExc_NameError, "__build_class__ not found");
    return push_result(result != nullptr, result);
}

Step Evaluator::load_assertion_error(int) {
    push(Py_NewRef(PyExc_AssertionError));
    return Step::next;
}

Step Evaluator::setup_annotations(int) {
    PyObject* mapping = frame_->f_locals;
    if (mapping == nullptr) {
        PyErr_Format(PyExc_SystemError, "no locals found when setting up annotations");
        return Step::error;
    }
    PyObject* annotations = find_in(mapping, names().annotations);
    if (annotations == nullptr) {
        if (PyErr_Occurred()) return Step::error;
        annotations = PyDict_New();
        if (annotations == nullptr) return Step::error;
        if (store_in(mapping, names().annotations, annotations) != 0) {
            Py_DECREF(annotations);
            return Step::error;
        }
    }
    Py_DECREF(annotations);
    return Step::next;
}

}  // namespace ingot::capture
