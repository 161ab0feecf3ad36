// Whole containers that are read, what the recording writes, and the effects of that; see world.h.
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "capture/departing.h"
#include "capture/dict_image.h"
#include "capture/keys.h"
#include "capture/objects.h"
#include "capture/warnings.h"
#include "capture/world.h"
#include "trace/recorder.h"

namespace ingot::capture {

void LentNumbers::lend(PyObject* tuple, Py_ssize_t index, PyObject* number) {
    Ref item = Ref::steal(PyTuple_GET_ITEM(tuple, index));
    PyTuple_SET_ITEM(tuple, index, Py_NewRef(number));
    loans_.push_back({Ref::borrow(tuple), index, std::move(item), Ref::borrow(number)});
}

void TupleConstants::add(PyCodeObject* code, const std::function<void(PyObject*)>& met) {
    auto* object = reinterpret_cast<PyObject*>(code);
    if (!codes_.try_emplace(object, Ref::borrow(object)).second) return;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(code->co_consts); ++i)
        add_tuple(PyTuple_GET_ITEM(code->co_consts, i), met);
}

void TupleConstants::add_tuple(PyObject* tuple, const std::function<void(PyObject*)>& met) {
    if (!PyTuple_CheckExact(tuple) || !tuples_.insert(tuple).second) return;
    met(tuple);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i)
        add_tuple(PyTuple_GET_ITEM(tuple, i), met);
}

LentNumbers::~LentNumbers() {
    for (Loan& loan : loans_) {
        if (PyTuple_GET_ITEM(loan.tuple.get(), loan.index) != loan.number.get()) continue;
        PyTuple_SET_ITEM(loan.tuple.get(), loan.index, loan.item.release());
        Py_DECREF(loan.number.get());
    }
}

Ref World::first_keys(PyObject* dict) const {
    for (const WrittenKey& w : written_keys_)
        if (w.container.get() == dict && w.key &&
            (w.again || PyDict_Contains(dict, w.key.get()) != 1))
            throw Puzzle("the keys of a dict from which one was deleted");
    const Ref keys = Ref::steal(PyList_New(0));
    const bool all = keys && all_keys(dict, [&](PyObject* key) {
                         return added_.contains({dict, one_for_equal(key).get()}) ||
                                PyList_Append(keys.get(), key) == 0;
                     });
    Ref tuple = all ? Ref::steal(PyList_AsTuple(keys.get())) : Ref();
    if (!tuple) throw Puzzle("no memory");
    return tuple;
}

void World::read_whole_dict(PyObject* dict, int depth) {
    const Known* found = find(dict);
    if (found != nullptr && !found->whole && !found->dirty) {
        const Known known = *found;
        const Ref keys = first_keys(dict);
        const Py_ssize_t n = PyTuple_GET_SIZE(keys.get());
        for (Py_ssize_t i = 0; i < n; ++i) read_dict(dict, PyTuple_GET_ITEM(keys.get(), i));
        if (known.dynamic()) {
            Node node;
            node.place = known.place;
            node.parent = known.node;
            node.reach = Reach::Itself;
            node.demand.check = Check::Keys;
            node.demand.expected = keys;
            guards_.nodes.push_back(std::move(node));
        } else {
            PinnedDict& d = pinned_dict(dict, known);
            d.whole = true;
            d.ordered = PyODict_Check(dict) && n > 1;
            d.keys = keys;
        }
        known_[dict].whole = true;
    }
    if (depth <= 1) return;
    Py_ssize_t position = 0;
    PyObject *key = nullptr, *value = nullptr;
    while (PyDict_Next(dict, &position, &key, &value)) read_whole(value, depth - 1);
}

void World::read_whole_sequence(PyObject* o, int depth) {
    const bool tuple = PyTuple_Check(o);
    const Py_ssize_t size = Py_SIZE(o);
    const auto item = [&](Py_ssize_t i) {
        return tuple ? PyTuple_GET_ITEM(o, i) : PyList_GET_ITEM(o, i);
    };
    const Known* found = find(o);
    if (found != nullptr && !found->whole && !found->dirty) {
        const Known known = *found;
        // The object of its own that a number which changes gets. A tuple that comes with the call
        // holds it until the segment ends.
        const auto own_number = [&](Py_ssize_t i) -> PyObject* {
            const bool lends = tuple && known.dynamic() && !constants_.contains(o);
            if (!PyList_CheckExact(o) && !lends) return nullptr;
            PyObject* own = number_in(o, known, Reach::Item, i, nullptr, item(i));
            if (own == nullptr) return nullptr;
            if (tuple)
                lent_.lend(o, i, own);
            else if (PyList_SetItem(o, i, Py_NewRef(own)) != 0)
                throw Puzzle("an item that cannot be set");
            return own;
        };
        bool by_items = known.dynamic();
        for (Py_ssize_t i = 0; PyList_CheckExact(o) && i < size; ++i)
            by_items |= is_let_go(item(i));
        if (by_items) {
            if (!tuple && !PyList_CheckExact(o)) {
                throw Puzzle("a list of the class " + std::string(Py_TYPE(o)->tp_name));
            }
            const Known as = as_dynamic(o);
            for (Py_ssize_t i = 0; i < size; ++i)
                if (own_number(i) == nullptr) add_node(as, Reach::Item, i, nullptr, item(i));
        } else if (tuple) {
            for (Py_ssize_t i = 0; i < size; ++i) {
                const std::int32_t place = add_place({known.place, Reach::Item, i, {}});
                PyObject* value = item(i);
                if (find(value) != nullptr) continue;
                pinned_read(nullptr, value, place);
            }
        } else {
            PinnedList l;
            l.list = Ref::borrow(o);
            l.place = known.place;
            for (Py_ssize_t i = 0; i < size; ++i) {
                if (PyObject* own = own_number(i)) {
                    PinnedRead read;
                    if (PyTuple_CheckExact(own))
                        read.demand = demand_for(own, true);
                    else
                        read.demand.check = PyFloat_CheckExact(own) ? Check::Float : Check::Integer;
                    l.items.push_back(Ref::borrow(own));
                    l.reads.push_back(std::move(read));
                    continue;
                }
                const std::int32_t place = add_place({known.place, Reach::Item, i, {}});
                l.items.push_back(Ref::borrow(item(i)));
                l.reads.push_back(pinned_read(nullptr, item(i), place));
            }
            guards_.lists.push_back(std::move(l));
        }
        known_[o].whole = true;
    }
    if (depth <= 1) return;
    for (Py_ssize_t i = 0; i < size; ++i) read_whole(item(i), depth - 1);
}

void World::read_whole_set(PyObject* set) {
    const Known* found = find(set);
    if (found == nullptr || found->whole || found->dirty) return;
    const Known known = *found;
    // In the order in which they come: equal sets may have another.
    Ref members = Ref::steal(PySequence_Tuple(set));
    if (!members) throw Puzzle("no memory");
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(members.get()); ++i) {
        PyObject* item = PyTuple_GET_ITEM(members.get(), i);
        if (is_plain_constant(item)) continue;
        if (!stands_for_itself(item)) throw Puzzle("a set of objects");
        if (find(item) == nullptr)
            pin(item,
                Place{known.place, Reach::Lookup, 0, Ref::steal(PyUnicode_FromString("member"))});
    }
    if (PyFrozenSet_Check(set) && !known.dynamic()) {
        known_[set].whole = true;
        return;
    }
    Node node;
    node.place = known.place;
    node.demand.check = Check::Members;
    node.demand.expected = members;
    if (known.dynamic()) {
        node.parent = known.node;
        node.reach = Reach::Itself;
    } else {
        node.reach = Reach::Constant;
        node.key = set;
        guards_.places.push_back({known.place, Reach::Itself, 0, Ref::borrow(set)});
        node.place = static_cast<std::int32_t>(guards_.places.size()) - 1;
    }
    guards_.nodes.push_back(std::move(node));
    known_[set].whole = true;
}

namespace {

bool is_container(PyObject* o) {
    return PyDict_Check(o) || PyTuple_Check(o) || PyList_Check(o) || PyAnySet_Check(o) ||
           is_deque(o);
}

/// What an object of C code that was made while recording holds of containers, which may come from
/// outside, and of more such objects: a view of a dict, the arguments of an exception or of a
/// partial function, a SimpleNamespace.
std::vector<PyObject*> containers_within(PyObject* o) {
    std::vector<PyObject*> found;
    if (PyExceptionInstance_Check(o)) {
        found.push_back(reinterpret_cast<PyBaseExceptionObject*>(o)->args);
        return found;
    }
    PyTypeObject* type = Py_TYPE(o);
    if (!PyObject_IS_GC(o) || type->tp_traverse == nullptr || has_python_layout(type) ||
        is_generator(o) || PyAsyncGen_CheckExact(o) || PyFrame_Check(o) || PyMethod_Check(o) ||
        PyCell_Check(o) || PyWeakref_Check(o) || is_tensor(o))
        return found;
    const auto add = [](PyObject* part, void* parts) {
        if (!PyType_Check(part) && !is_immutable_c_object(part))
            static_cast<std::vector<PyObject*>*>(parts)->push_back(part);
        return 0;
    };
    type->tp_traverse(o, add, &found);
    return found;
}

}  // namespace

void World::read_whole(PyObject* o, int depth) {
    if (depth <= 0 || is_plain_constant(o) || is_tensor(o)) return;
    if (PyDict_Check(o)) return read_whole_dict(o, depth);
    if (PyTuple_Check(o) || PyList_Check(o)) return read_whole_sequence(o, depth);
    if (PyAnySet_Check(o)) return read_whole_set(o);
    if (is_deque(o)) return read_whole_deque(o, depth);
    if (PySlice_Check(o) && find(o) == nullptr) {
        const auto* slice = reinterpret_cast<PySliceObject*>(o);
        for (PyObject* part : {slice->start, slice->stop, slice->step}) read_whole(part, depth - 1);
    }
    if (is_immutable_c_object(o) || stands_for_itself(o)) return;
    if (depth == 1 && PyWeakref_CheckRefExact(o)) return;  // nothing asks for its object
    const Known* k = find(o);
    if (k == nullptr) {
        for (PyObject* part : containers_within(o))
            if (find(part) == nullptr || is_container(part)) read_whole(part, depth - 1);
        return;
    }
    if (has_python_layout(Py_TYPE(o))) return;  // its methods report themselves
    throw Puzzle("the contents of " + describe(o));
}

void World::relate(PyObject* a, PyObject* b) {
    if (a == nullptr || b == nullptr || is_plain_constant(a) || is_plain_constant(b)) return;
    const Known* x = find(a);
    const Known* y = find(b);
    if (x == nullptr || y == nullptr) return;  // a fresh object is no outside object
    if (!x->dynamic()) std::swap(x, y);
    if (!x->dynamic()) {
        if (is_tensor(a)) fix_tensor(a);
        if (is_tensor(b)) fix_tensor(b);
        return;
    }
    if (y->dynamic()) {
        if (x->node != y->node) guards_.relations.push_back({x->node, y->node, {}, a == b});
    } else {
        PyObject* pinned = find(a) == y ? a : b;
        guards_.relations.push_back({x->node, -1, Ref::borrow(pinned), a == b});
    }
}

// ---- writes ----

/// A recording holds what it replaces: an object that does something when it goes would do it late.
void World::refuse_finalizer(PyObject* old) const {
    if (PyObject* acting = acting_when_it_goes(old))
        throw Departure("an object with a finalizer is replaced", is_kept_by_guards(acting));
}

void World::refuse_finalizers_in(PyObject* container) const {
    if (PyObject* acting = acting_when_contents_go(container))
        throw Departure("a container of objects with finalizers is changed",
                        is_kept_by_guards(acting));
}

bool World::is_kept_by_guards(PyObject* object) const {
    const Known* k = find(object);
    return k != nullptr && !k->dynamic();
}

void World::write_dict(PyObject* dict, PyObject* key, bool deletes) {
    const Known* k = find(dict);
    if (k == nullptr) return;
    const Ref own_key = one_for_equal(key);
    key = own_key.get();
    if (k->dirty) {
        if (!is_plain_constant(key)) return refuse_finalizers_in(dict);
        return refuse_finalizer(PyDict_GetItemWithError(dict, key));
    }
    if (deletes && is_plain_constant(key)) refuse_finalizer(PyDict_GetItemWithError(dict, key));
    if (deletes) read_dict(dict, key);  // where it is absent, deleting it raises
    if (!is_plain_constant(key) && !(is_tensor(key) && fix_tensor(key))) return write_whole(dict);
    refuse_finalizer(PyDict_GetItemWithError(dict, key));
    undo_.note_key(dict, key, deletes);
    if (!written_.insert({dict, key}).second) {
        if (PyDict_GetItemWithError(dict, key) != nullptr) return;
        PyErr_Clear();
        const auto before = std::ranges::find_if(written_keys_, [&](const WrittenKey& w) {
            return w.container.get() == dict && w.key.get() == key;
        });
        before->again = true;
        std::rotate(before, before + 1, written_keys_.end());
        return;
    }
    held_.push_back(Ref::borrow(key));
    if (PyDict_Contains(dict, key) == 0) added_.insert({dict, key});
    written_keys_.push_back({Ref::borrow(dict), Ref::borrow(key)});
}

void World::write_attribute(PyObject* owner, PyObject* name, bool deletes) {
    PyTypeObject* type = Py_TYPE(owner);
    PyObject* found = read_class(type, name);
    if (find(owner) == nullptr) return;
    if (found != nullptr && Py_TYPE(found)->tp_descr_set != nullptr) {
        if (Py_TYPE(found) == &PyMemberDescr_Type) {
            {
                const Ref old = Ref::steal(PyObject_GenericGetAttr(owner, name));
                if (!old) PyErr_Clear();
                refuse_finalizer(old.get());
            }
            if (deletes) read_member(owner, found, name);
            undo_.note_member(owner, name);
            if (written_.insert({owner, name}).second)
                written_members_.emplace_back(Ref::borrow(owner), Ref::borrow(name));
            return;
        }
        if (Py_TYPE(found) == &PyGetSetDescr_Type)
            throw Puzzle("a store to a C attribute of " + describe(owner));
        return;  // Python code, which reports what it stores
    }
    if (PyType_Check(owner)) throw Puzzle("a store to a class attribute");
    PyObject* dict = PyModule_Check(owner)       ? PyModule_GetDict(owner)
                     : is_local_of_threads(type) ? thread_dict(owner)
                                                 : instance_dict(owner);
    if (dict == nullptr) throw Puzzle("the first attribute of " + describe(owner));
    if (find(dict) == nullptr) pin(dict, "module");
    write_dict(dict, name, deletes);
}

void World::write_cell(PyObject* cell) {
    if (find(cell) == nullptr || !written_.insert({cell, nullptr}).second) return;
    refuse_finalizer(PyCell_GET(cell));
    undo_.note_cell(cell);
    written_keys_.push_back({Ref::borrow(cell), Ref()});
}

void World::write_whole(PyObject* container, bool removes) {
    const Known* k = find(container);
    if (k == nullptr) return;
    if (removes) refuse_finalizers_in(container);
    if (k->dirty) return;
    read_whole(container);
    undo_.note_contents(container);
    known_[container].dirty = true;
    written_wholes_.push_back(Ref::borrow(container));
}

void World::for_each_written(const std::function<void(PyObject*)>& use) const {
    for (const WrittenKey& w : written_keys_) {
        if (!w.key) {
            use(PyCell_GET(w.container.get()));
            continue;
        }
        use(PyDict_GetItemWithError(w.container.get(), w.key.get()));
        PyErr_Clear();
    }
    for (const auto& [owner, name] : written_members_) {
        const Ref value = Ref::steal(PyObject_GenericGetAttr(owner.get(), name.get()));
        if (!value) PyErr_Clear();
        use(value.get());
    }
    const auto each = [](PyObject* o, void* user) {
        (*static_cast<const std::function<void(PyObject*)>*>(user))(o);
        return 0;
    };
    for (const Ref& container : written_wholes_)
        if (const auto traverse = Py_TYPE(container.get())->tp_traverse; traverse != nullptr)
            traverse(container.get(), each, const_cast<void*>(static_cast<const void*>(&use)));
}

void World::let_go() {
    // Finalizers of theirs run here.
    const std::vector<Ref> gone = std::exchange(held_, {});
    const std::unordered_map<PyObject*, Ref> owners = std::exchange(owners_, {});
    undo_.forget();
}

void World::add_effects(RecipeBuilder& builder) {
    add_moves(builder);  // before what they iterate over is changed
    for (const auto& [container, key, again] : written_keys_) {
        if (!key) {
            builder.effect(Make::SetAttribute, container.get(),
                           {Py_None, PyCell_GET(container.get())});
            continue;
        }
        if (find(container.get())->dirty) continue;
        PyObject* value = PyDict_GetItemWithError(container.get(), key.get());
        if (value == nullptr) PyErr_Clear();
        if (!again && reads_.contains({container.get(), key.get()}) &&
            undo_.began_with(container.get(), key.get(), value))
            continue;
        builder.effect(again && value != nullptr ? Make::SetLast : Make::SetItem, container.get(),
                       {key.get(), value});
    }
    for (const auto& [owner, name] : written_members_) {
        Ref value = Ref::steal(PyObject_GenericGetAttr(owner.get(), name.get()));
        if (!value) PyErr_Clear();
        builder.effect(Make::SetAttribute, owner.get(), {name.get(), value.get()});
    }
    for (const Ref& container : written_wholes_) {
        PyObject* o = container.get();
        if (PyDict_Check(o)) {
            const DictImage image = DictImage::of(o);
            if (!image.items) throw NoRecipe("no memory");
            std::vector<PyObject*> parts{image.items.get()};
            if (image.order) parts.push_back(image.order.get());
            builder.effect(Make::Rewrite, o, std::move(parts));
            continue;
        }
        const Ref copy = Ref::steal(PyAnySet_Check(o) ? PySet_New(nullptr)
                                    : PyList_Check(o) ? PyList_GetSlice(o, 0, PY_SSIZE_T_MAX)
                                                      : PySequence_List(o));
        if (!copy || (PyAnySet_Check(o) && !SetImage(o).restore(copy.get())))
            throw NoRecipe("no memory");
        builder.effect(Make::Rewrite, o, {copy.get()});
    }
    for (const auto& [callable, arguments] : repeated_calls_)
        builder.effect(Make::Call, callable.get(), {arguments.get()});
    set_changed_apart();
}

void World::read_warning_filters() {
    if (guards_.warning_filters) return;
    guards_.warning_filters = warning_filters();
    if (!guards_.warning_filters) throw Puzzle("a warning without filters");
}

bool World::fix_tensor(PyObject* tensor) {
    const Known* k = find(tensor);
    if (k == nullptr || k->tensor < 0) return false;
    guards_.tensors[static_cast<std::size_t>(k->tensor)].fixed = true;
    return true;
}

void World::refuse_hooks(PyObject* leaf) {
    const Known* k = leaf == nullptr ? nullptr : find(leaf);
    if (k == nullptr) return;
    if (k->tensor >= 0)
        guards_.tensors[static_cast<std::size_t>(k->tensor)].facts.unhooked = true;
    else if (k->dynamic())
        if (TensorFacts* facts =
                guards_.nodes[static_cast<std::size_t>(k->node)].demand.tensor.get())
            facts->unhooked = true;
}

void World::read_gradient(PyObject* tensor) {
    static PyObject* const name = PyUnicode_InternFromString("grad");
    const Known* found = find(tensor);
    if (found == nullptr || written_.contains({tensor, name}) ||
        !reads_.insert({tensor, name}).second)
        return;
    const Known known = *found;
    if (!known.dynamic() && !fix_tensor(tensor)) throw Puzzle("the gradient of a tensor");
    const Ref value = gradient_of(tensor);
    add_node(known, Reach::Gradient, known.tensor, name, value.get());
}

void World::write_gradient(PyObject* tensor, bool first) {
    static PyObject* const name = PyUnicode_InternFromString("grad");
    const Known* k = find(tensor);
    if (k == nullptr || (!k->dynamic() && !fix_tensor(tensor)))
        throw Puzzle("a store to the gradient of a tensor");
    if (!written_.insert({tensor, name}).second) return;
    written_members_.emplace_back(Ref::borrow(tensor), Ref::borrow(name));
    if (!first) return;
    const Ref gradient = gradient_of(tensor);
    const Known* known = find(gradient.get());
    if (known == nullptr)
        cleared_.push_back({k->tensor, k->node});
    else if (known->dynamic())
        cleared_.push_back({k->tensor, k->node, known->node, gradient.get()});
}

void World::repeat_call(PyObject* callable, PyObject* arguments) {
    pin(callable, "a function");
    undo_.lose();
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(arguments); ++i)
        pin(PyTuple_GET_ITEM(arguments, i), "an argument");
    repeated_calls_.emplace_back(Ref::borrow(callable), Ref::borrow(arguments));
}

}  // namespace ingot::capture
